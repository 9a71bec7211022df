// SPDX-License-Identifier: BSD-3-Clause
// A module that changes after DistributedDataParallel has wrapped it: the change is followed, with the
// weights of one process, or refused on all ranks.
#include "multiprocess/changed_modules.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "comm/group_state.h"
#include "graphs/graph_phase.h"
#include "multiprocess/changed_net.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::changed_modules_test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 6;
constexpr int kChangedStep = 3;

DistributedDataParallelOptions with_optimizer_in_backward() {
  return {.optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  }};
}

std::vector<Way> ways() {
  return {
      {"unfreeze", unfreeze},
      {"unfreeze, then freeze", unfreeze, "", {}, freeze},
      {"freeze", freeze},
      {"freeze a bias", [](Net& net) { net->last->bias.requires_grad_(false); }},
      {"freeze all for a step", freeze_all, "", {}, [](Net& net) { set_trained(*net, true); }},
      {"freeze all, then unfreeze some", freeze_all, "", {}, [](Net& net) { set_trained(*net->last, true); }},
      {"to double", to_double},
      {"to double and back", [](Net& net) { to_double(net), net->to(torch::kFloat); }},
      {"to double, later back", to_double, "", {}, [](Net& net) { net->to(torch::kFloat); }},
      {"one layer to double", [](Net& net) { net->first->to(torch::kDouble); }},
      {"to double and unfreeze", [](Net& net) { to_double(net), unfreeze(net); }},
      {"other memory", [](Net& net) { net->last->weight.set_data(net->last->weight.detach() * 2); }},
      {"other strides", transpose_memory},
      {"find unused", unfreeze, "", {.find_unused_parameters = true}},
      {"find unused, freeze", freeze, "", {.find_unused_parameters = true}},
      {"static graph", unfreeze, "", {.static_graph = true}},
      {"static graph, freeze", freeze, "", {.static_graph = true}},
      {"own gradients", unfreeze, "", {.gradient_as_bucket_view = false}},
      {"own gradients, double", to_double, "", {.gradient_as_bucket_view = false}},
      {"batched copy", unfreeze, "", {.batched_grad_copy = true}},
      {"lazy buckets", unfreeze, "", {.lazy_bucket_allocation = true}},
      {"small buckets", freeze, "", {.bucket_cap_mb = 0.00005}},
      {"kept gradients", unfreeze, "", {}, freeze, true},
      {"kept gradients, double", to_double, "", {}, {}, true},
      {"accumulated", unfreeze, "", {}, {}, false, true},
      {"accumulated, freeze", freeze, "", {}, {}, false, true},
      {"accumulated, freeze all", freeze_all, "", {}, [](Net& net) { set_trained(*net, true); }, false, true},
      {"converted while frozen",
       [](Net& net) { freeze_all(net), to_double(net); },
       "",
       {},
       [](Net& net) { set_trained(*net, true); }},
      {"mixed precision, freeze all",
       freeze_all,
       "",
       {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}},
       [](Net& net) { set_trained(*net, true); },
       false,
       false,
       5e-2},
      {"no buffers", freeze, "", {.broadcast_buffers = false}, unfreeze},
      {"mixed precision",
       unfreeze,
       "",
       {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}},
       freeze,
       false,
       false,
       5e-2},
      {"a hook without a state",
       unfreeze,
       "",
       {},
       {},
       false,
       false,
       1e-5,
       [](auto& ddp) { ddp->register_comm_hook(allreduce_hook); }},
      {"buffer added", [](Net& net) { net->register_buffer("more", torch::ones({2})); }},
      {"buffer converted", [](Net& net) { net->shift.set_data(net->shift.to(torch::kDouble) * 2); }},
      {"buffer of another shape", [](Net& net) { net->shift.set_data(torch::ones({1})); }},
      {"ignored",
       [](Net& net) { set_trained(*net->norm, false); },
       "",
       {.params_and_buffers_to_ignore = {"norm.weight", "norm.bias"}},
       {},
       false,
       false,
       1e9},
      {"other shape", reshape_parameter, "norm.weight: the shape was [6], is [1, 6]"},
      {"replaced layer", replace_layer, "last.weight: it has been replaced"},
      {"added parameter", add_parameter, "added: it has been added"},
      {"removed layer", remove_layer, "norm.weight: it has been removed"},
      {"replaced member", replace_member, "last.weight has been replaced"},
      {"a hook with a state",
       unfreeze,
       "communication hook",
       {},
       {},
       false,
       false,
       0,
       [](auto& ddp) { ddp->register_comm_hook(PowerSGD()); }},
      {"optimizer in backward", unfreeze, "optimizer_in_backward", with_optimizer_in_backward()},
      {"delayed",
       unfreeze,
       "delay_all_reduce_named_params",
       {.delay_all_reduce_named_params = {"norm.bias"}, .param_to_hook_all_reduce = "first.weight"}},
  };
}

bool is_trained(const Net& net) {
  return std::ranges::any_of(net->parameters(), [](const auto& each) { return each.requires_grad(); });
}

void apply_change(const Way& way, Net& net, int step) {
  if (step == kChangedStep) way.change(net);
  if (step == kChangedStep + 1 && way.later) way.later(net);
}

Net train_in_one_process(const Way& way) {
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    apply_change(way, net, step);
    if (!(way.accumulates && step == kChangedStep)) optimizer.zero_grad(!way.keeps_gradients);
    if (is_trained(net)) loss_of(net->forward(inputs(step))).backward();
    if (!(way.accumulates && step == kChangedStep - 1)) optimizer.step();
  }
  return net;
}

// The ranks' part; `changes`: whether this rank does.
Net train_wrapped(const Way& way, const ProcessGroup& group, bool changes) {
  torch::manual_seed(1);
  Net net;
  auto options = way.options;
  options.process_group = group;
  DistributedDataParallel ddp(net, options);
  if (way.prepare) way.prepare(ddp);
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    if (changes) apply_change(way, net, step);
    if (step == kChangedStep) std::this_thread::sleep_for(way.delay);
    if (!(way.accumulates && step == kChangedStep)) optimizer.zero_grad(!way.keeps_gradients);
    std::optional<NoSync> alone;
    const bool accumulates = way.accumulates && step == kChangedStep - 1;
    if (accumulates) alone.emplace(ddp->no_sync());
    const auto output = ddp->forward(inputs(step).narrow(0, group.rank() * kBatch, kBatch));
    if (is_trained(net)) loss_of(output).backward();
    EXPECT_EQ(ddp->has_averaged_gradients(), !accumulates) << way.name << " step " << step;
    if (!accumulates && !options.optimizer_in_backward) optimizer.step();
  }
  return net;
}

void expect_equal(const Net& net, const Net& expected, const Way& way) {
  const auto wanted = expected->named_parameters();
  for (const auto& item : net->named_parameters()) {
    const auto& other = wanted[item.key()];
    EXPECT_EQ(item.value().scalar_type(), other.scalar_type()) << way.name << ": " << item.key();
    EXPECT_TRUE(
        torch::allclose(item.value().to(at::kDouble), other.to(at::kDouble), way.tolerance, way.tolerance))
        << way.name << ": " << item.key() << " differs by "
        << (item.value().to(at::kDouble) - other.to(at::kDouble)).abs().max();
  }
}

// The ranks of a group that does not know that they share a host.
ProcessGroup without_node_group(const ProcessGroup& group) {
  auto info = comm::state_of(group).info();
  info.node_group.reset();
  return {group.backend(), std::move(info)};
}

bool hides_host() { return std::getenv("TEST_HIDES_HOST") != nullptr; }

ProcessGroup group_for_one_way() {
  const auto group = new_group({0, 1});
  return hides_host() ? without_node_group(group) : group;
}

const Scenario on_all_ranks("modules changed on all ranks", [] {
  const auto context = init({.backend = std::getenv("TEST_BACKEND")});
  for (const auto& way : ways()) {
    const auto group = group_for_one_way();
    if (way.refused.empty()) {
      expect_equal(train_wrapped(way, group, true), train_in_one_process(way), way);
      continue;
    }
    EXPECT_THAT(error_of([&] { train_wrapped(way, group, true); }), HasSubstr(way.refused)) << way.name;
  }
});

TEST(ChangedModules, AreFollowedOrRefusedOnAllRanks) {
  expect_all_passed(run_ranks(on_all_ranks, {.env = {{"TEST_BACKEND", "shm"}}}));
}

TEST(ChangedModules, AreFollowedOrRefusedOverGloo) {
  expect_all_passed(run_ranks(on_all_ranks, {.env = {{"TEST_BACKEND", "gloo"}}}));
}

TEST(ChangedModules, AreFollowedOrRefusedBetweenHosts) {
  expect_all_passed(run_ranks(on_all_ranks, {.env = {{"TEST_BACKEND", "gloo"}, {"TEST_HIDES_HOST", "1"}}}));
}

const Scenario on_one_rank("modules changed on one rank", [] {
  const auto context = init({.backend = std::getenv("TEST_BACKEND")});
  const std::vector<Way> ways = {
      {"freeze", freeze, "first.weight: requires_grad was true, is false"},
      {"unfreeze", unfreeze, "frozen.weight: requires_grad was false, is true"},
      {"freeze all", freeze_all, "first.weight: requires_grad was true"},
      {"to double", to_double, "first.weight: the dtype was Float, is Double"},
      {"other strides", transpose_memory, "first.weight: it had the strides"},
      {"other shape", reshape_parameter, "norm.weight: the shape was"},
      {"replaced layer", replace_layer, "last.weight: it has been replaced"},
      {"added parameter", add_parameter, "added: it has been added"},
      {"removed layer", remove_layer, "norm.weight: it has been removed"},
      {"buffer of another shape", [](Net& net) { net->shift.set_data(torch::ones({1})); },
       "shift: the shape was"},
      {"rebuilt buckets", freeze, "first.weight: requires_grad was true", {.bucket_cap_mb = 0.00005}},
      {"unused", freeze, "first.weight: requires_grad was true", {.find_unused_parameters = true}},
      {"static", freeze, "first.weight: requires_grad was true", {.static_graph = true}},
  };
  for (const auto& way : ways) {
    for (int changed = 0; changed < 2; ++changed) {
      const auto group = group_for_one_way();
      EXPECT_THAT(error_of([&] { train_wrapped(way, group, context.rank() == changed); }),
                  HasSubstr(way.refused))
          << way.name << " on rank " << changed;
    }
  }
  // Whichever rank comes first to the forward.
  const Way silent{"no call before the buckets",
                   freeze,
                   "first.weight: requires_grad was true",
                   {.broadcast_buffers = false}};
  for (int late = 0; late < 2; ++late) {
    auto way = silent;
    way.delay = std::chrono::milliseconds(context.rank() == late ? 50 : 0);
    EXPECT_THAT(error_of([&] { train_wrapped(way, group_for_one_way(), context.rank() == 1); }),
                HasSubstr(way.refused))
        << "rank " << late << " is late";
  }
  // Each rank another one.
  const auto group = group_for_one_way();
  const Way way{"different", context.rank() == 0 ? freeze : unfreeze};
  EXPECT_THAT(error_of([&] { train_wrapped(way, group, true); }), HasSubstr("the ranks' modules differ"));
});

TEST(ChangedModules, OfOneRankAreErrorsOnAll) {
  expect_all_passed(run_ranks(on_one_rank, {.env = {{"TEST_BACKEND", "shm"}}}));
}

TEST(ChangedModules, OfOneRankAreErrorsOverGloo) {
  expect_all_passed(run_ranks(on_one_rank, {.env = {{"TEST_BACKEND", "gloo"}}}));
}

TEST(ChangedModules, OfOneRankAreErrorsBetweenHosts) {
  expect_all_passed(run_ranks(on_one_rank, {.env = {{"TEST_BACKEND", "gloo"}, {"TEST_HIDES_HOST", "1"}}}));
}

struct TwoPathsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool first) { return last->forward(first ? one(x) : other(x)); }
  torch::nn::Linear one{register_module("one", torch::nn::Linear(2, 2))};
  torch::nn::Linear other{register_module("other", torch::nn::Linear(2, 2))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(2, 2))};
};
TORCH_MODULE(TwoPaths);

// Each rank has gradients of another layer when both leave. In one process each gradient is half of its own.
const Scenario accumulated_apart("layers frozen of which each rank has accumulated another one", [] {
  const auto context = init({.backend = std::getenv("TEST_BACKEND")});
  const int rank = context.rank();
  TwoPaths net;
  DistributedDataParallel ddp(net, {.find_unused_parameters = true});
  const auto backward = [&] { ddp->forward(torch::full({1, 2}, rank + 1.), rank == 0).sum().backward(); };
  backward();
  net->zero_grad();
  {
    const auto alone = ddp->no_sync();
    backward();
  }
  std::vector<at::Tensor> expected;
  for (int owner = 0; owner < 2; ++owner) {
    const auto& layer = owner == 0 ? net->one : net->other;
    EXPECT_EQ(layer->weight.grad().defined(), owner == rank);
    expected.push_back(owner == rank ? layer->weight.grad() / 2 : torch::zeros({2, 2}));
    context.group().broadcast(expected.back(), owner);
  }
  set_trained(*net->one, false);
  set_trained(*net->other, false);
  backward();
  for (int owner = 0; owner < 2; ++owner) {
    const auto& gradient = (owner == 0 ? net->one : net->other)->weight.grad();
    EXPECT_TRUE(gradient.defined() && gradient.equal(expected[static_cast<std::size_t>(owner)])) << gradient;
  }
});
TEST(ChangedModules, KeepTheGradientsOfOtherRanks) {
  for (const auto* const backend : {"shm", "gloo"})
    expect_all_passed(run_ranks(accumulated_apart, {.env = {{"TEST_BACKEND", backend}}}));
}

// The step of this rank after which rank 1, whose module has changed, stays alive until rank 0 has its error.
void expect_ended_by_rank_1(const Context& context, const std::function<std::string()>& error_of_step,
                            const std::string& of_other, const std::string& of_own) {
  const std::filesystem::path done = std::string(std::getenv("TEST_FOLDER")) + "/done";
  if (context.rank() == 1) {
    EXPECT_THAT(error_of_step(), HasSubstr(of_own));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!std::filesystem::exists(done) && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(std::filesystem::exists(done)) << "rank 0 still waits";
    return;
  }
  EXPECT_THAT(error_of_step(), HasSubstr(of_other));
  std::ofstream(done) << "done";
}

const Scenario with_python("a module changed on one rank of a run with Python ranks", [] {
  const auto context = init({.backend = "gloo", .timeout = std::chrono::seconds(90), .with_python = true});
  const Way way{"freeze", freeze};
  expect_ended_by_rank_1(
      context, [&] { return error_of([&] { train_wrapped(way, context.group(), context.rank() == 1); }); },
      "another rank is gone", "Python ranks cannot follow");
});

TEST(ChangedModules, OfOneRankEndTheStepOfPythonRanks) {
  const TempFolder folder;
  expect_all_passed(run_ranks(with_python, {.env = {{"TEST_FOLDER", folder.path().string()}}}));
}

const Scenario in_a_capture("a module changed on one rank in a capture", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(90)});
  Net net;
  DistributedDataParallel ddp(net, {.process_group = context.group()});
  const auto step = [&] { loss_of(ddp->forward(inputs(context.rank()))).backward(); };
  step();
  const auto error_of_step = [&] {
    std::optional<GraphPhaseScope> capture;
    if (context.rank() == 1) freeze(net), capture.emplace(GraphPhase::capture);
    return error_of(step);
  };
  expect_ended_by_rank_1(context, error_of_step, "its module has changed: parameter first.weight",
                         "A GraphedStep cannot capture this");
});

TEST(ChangedModules, OfOneRankInACaptureEndTheStepOfOthers) {
  const TempFolder folder;
  expect_all_passed(run_ranks(in_a_capture, {.env = {{"TEST_FOLDER", folder.path().string()}}}));
}

}  // namespace
}  // namespace lockstep::testing::changed_modules_test
