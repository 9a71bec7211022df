// SPDX-License-Identifier: BSD-3-Clause
#include "parity/feature_case.h"

#include <fmt/format.h>

namespace lockstep::testing {
namespace {

using Cases = std::vector<FeatureCase>;

void add_unused(Cases& cases) {
  for (const bool view : {false, true}) {
    for (const bool to_none : {false, true}) {
      const auto suffix = fmt::format("view_{:d}_to_none_{:d}", view, to_none);
      cases.push_back({.name = "unused_" + suffix,
                       .net = "experts",
                       .view = view,
                       .set_to_none = to_none,
                       .find_unused = true,
                       .own_experts = true});
      cases.push_back({.name = "static_unused_" + suffix,
                       .net = "one_expert",
                       .view = view,
                       .set_to_none = to_none,
                       .static_graph = true});
    }
  }
  cases.push_back({.name = "unused_everywhere_the_same", .net = "experts", .find_unused = true});
  cases.push_back({.name = "unused_accumulated",
                   .net = "experts",
                   .micro_steps = 3,
                   .find_unused = true,
                   .own_experts = true});
  cases.push_back(
      {.name = "unused_in_one_bucket", .net = "experts", .bucket_cap_mb = 0, .find_unused = true});
  cases.push_back({.name = "unused_skipped", .net = "one_expert", .find_unused = true, .skip_unused = true});
  cases.push_back({.name = "find_unused_where_all_are_used", .find_unused = true});
  cases.push_back(
      {.name = "static_and_find_unused", .net = "one_expert", .find_unused = true, .static_graph = true});
}

void add_graphs(Cases& cases) {
  cases.push_back({.name = "static_graph", .static_graph = true});
  cases.push_back({.name = "static_graph_accumulated", .steps = 6, .micro_steps = 2, .view = true});
  cases.push_back({.name = "two_forwards_one_backward", .forwards = 2});
  cases.push_back({.name = "reuse", .net = "reuse"});
  cases.push_back({.name = "reuse_checkpoint", .net = "reuse", .checkpoint = "plain"});
  cases.push_back({.name = "reuse_checkpoint_view", .net = "reuse", .view = true, .checkpoint = "plain"});
  cases.push_back(
      {.name = "reuse_reentrant_static", .net = "reuse", .static_graph = true, .checkpoint = "reentrant"});
  cases.push_back({.name = "gpt", .net = "gpt"});
  // Gradients of a recomputed block have a different order than in PyTorch, and Gloo's sums of more than two
  // depend on where in a bucket they are.
  cases.push_back(
      {.name = "gpt_checkpoint", .net = "gpt", .bucket_cap_mb = 0, .checkpoint = "plain", .most_ranks = 2});
  cases.push_back({.name = "gpt_reentrant", .net = "gpt", .checkpoint = "reentrant"});
  cases.push_back(
      {.name = "gpt_find_unused_checkpoint", .net = "gpt", .find_unused = true, .checkpoint = "plain"});
  cases.push_back({.name = "resnet18", .net = "resnet18", .steps = 4, .bucket_cap_mb = 0.1});
  cases.push_back({.name = "resnet18_accumulated_view",
                   .net = "resnet18",
                   .steps = 3,
                   .micro_steps = 2,
                   .bucket_cap_mb = 0,
                   .view = true});
  cases.push_back({.name = "sparse_embedding", .net = "sparse"});
  cases.push_back({.name = "sparse_embedding_view", .net = "sparse", .view = true});
  cases.push_back({.name = "kinds_of_parameters", .net = "kinds"});
  cases.push_back({.name = "kinds_of_parameters_view", .net = "kinds", .view = true, .set_to_none = false});
}

void add_options(Cases& cases) {
  for (const bool view : {false, true}) {
    for (const bool to_none : {false, true}) {
      cases.push_back({.name = fmt::format("batched_grad_copy_view_{:d}_to_none_{:d}", view, to_none),
                       .view = view,
                       .set_to_none = to_none,
                       .batched = true});
      cases.push_back({.name = fmt::format("lazy_buckets_view_{:d}_to_none_{:d}", view, to_none),
                       .view = view,
                       .set_to_none = to_none,
                       .lazy = true});
    }
  }
  cases.push_back({.name = "lazy_buckets_accumulated", .micro_steps = 2, .view = true, .lazy = true});
  cases.push_back({.name = "bucket_list", .bucket_cap_mb = 0, .bucket_caps = "0.002,0.02,0.005"});
  cases.push_back({.name = "buffers_off", .buffers = "off"});
  cases.push_back({.name = "forward_sync_buffers_on", .buffers = "forward_on"});
  cases.push_back({.name = "forward_sync_buffers_off", .buffers = "forward_off"});
  cases.push_back({.name = "delayed", .delay = "input.weight", .trigger = "conv.weight"});
  cases.push_back({.name = "ignored", .ignore = "input.weight"});
  cases.push_back({.name = "clipped", .micro_steps = 2, .clip = 0.05});
  cases.push_back({.name = "optimizer_in_backward", .view = true, .in_backward = true});
  cases.push_back({.name = "optimizer_in_backward_copies", .in_backward = true});
}

void add_joins(Cases& cases) {
  for (const bool by_initial_size : {true, false}) {
    for (const char* batches : {"6,2", "1,7", "0,3"}) {
      cases.push_back({.name = fmt::format("join_{}_initial_size_{:d}", batches, by_initial_size),
                       .batches = batches,
                       .by_initial_size = by_initial_size});
    }
  }
  cases.push_back({.name = "join_50", .batches = "50,1", .view = true});
  // One expert: with several, PyTorch's joined ranks keep reporting those that they used last (docs/ddp.md).
  cases.push_back({.name = "join_unused",
                   .net = "one_expert",
                   .batches = "2,5",
                   .find_unused = true,
                   .by_initial_size = false});
  cases.push_back({.name = "join_no_sync", .batches = "4,2", .micro_steps = 2});
  cases.push_back({.name = "join_hook", .batches = "2,4", .hook = "fp16"});
  cases.push_back({.name = "join_stopped", .batches = "5,2", .stop_early = true});
}

void add_hooks(Cases& cases) {
  for (const char* hook :
       {"allreduce", "fp16", "bf16", "fp16_wrapper", "bf16_wrapper", "local_sgd", "local_sgd_off"}) {
    cases.push_back({.name = fmt::format("hook_{}", hook), .hook = hook});
  }
  // One bucket: PyTorch's hook waits in a callback, which hangs over Gloo with several buckets.
  for (const char* hook : {"powersgd", "powersgd_rank3", "powersgd_no_feedback", "powersgd_cold",
                           "powersgd_batched", "powersgd_fp16"}) {
    cases.push_back({.name = fmt::format("hook_{}", hook), .bucket_cap_mb = 0, .hook = hook});
  }
  cases.push_back({.name = "hook_fp16_view", .view = true, .set_to_none = false, .hook = "fp16"});
  cases.push_back({.name = "hook_powersgd_resnet18",
                   .net = "resnet18",
                   .steps = 5,
                   .bucket_cap_mb = 0,
                   .hook = "powersgd"});
  cases.push_back({.name = "hook_allreduce_unused",
                   .net = "experts",
                   .find_unused = true,
                   .hook = "allreduce",
                   .own_experts = true});
  cases.push_back({.name = "averager", .steps = 9, .hook = "local_sgd_off", .average_every = 3});
}

}  // namespace

std::vector<FeatureCase> feature_cases() {
  Cases cases;
  add_unused(cases);
  add_graphs(cases);
  add_options(cases);
  add_joins(cases);
  add_hooks(cases);
  return cases;
}

std::string to_words(const FeatureCase& each) {
  return fmt::format(
             "name={} net={} steps={} batches={} micro_steps={} forwards={} bucket_cap_mb={} bucket_caps={} "
             "view={:d} set_to_none={:d} find_unused={:d} static_graph={:d} skip_unused={:d} batched={:d} "
             "lazy={:d} ",
             each.name, each.net, each.steps, each.batches, each.micro_steps, each.forwards,
             each.bucket_cap_mb, each.bucket_caps, each.view, each.set_to_none, each.find_unused,
             each.static_graph, each.skip_unused, each.batched, each.lazy) +
         fmt::format(
             "buffers={} checkpoint={} hook={} delay={} trigger={} ignore={} own_experts={:d} "
             "by_initial_size={:d} stop_early={:d} in_backward={:d} average_every={} clip={}",
             each.buffers, each.checkpoint, each.hook, each.delay, each.trigger, each.ignore,
             each.own_experts, each.by_initial_size, each.stop_early, each.in_backward, each.average_every,
             each.clip);
}

}  // namespace lockstep::testing
