// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallel, sequence parallel and the parallel loss, also under fully_shard(), beside PyTorch's
// DTensor, over gloo on both sides.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "parity/both_sides.h"
#include "parity/tensor_record.h"
#include "support/parallel_net.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

namespace tp = tensor_parallel;
using at::Tensor;

struct Case {
  const char* name;
  const char* net;
  bool bias, sequence;
  int shards = 1;  // ranks of fully_shard()
};

std::vector<Case> cases_for(int world_size) {
  std::vector<Case> cases{{"mlp", "mlp", false, false},         {"mlp_bias", "mlp", true, false},
                          {"gated", "gated", false, false},     {"gated_sequence", "gated", false, true},
                          {"gpt", "gpt", false, false},         {"gpt_bias", "gpt", true, false},
                          {"gpt_sequence", "gpt", false, true}, {"gpt_sequence_bias", "gpt", true, true}};
  if (world_size == 4) {
    cases.push_back({"sharded_mlp", "mlp", false, false, 2});
    cases.push_back({"sharded_gpt", "gpt", false, false, 2});
    cases.push_back({"sharded_gpt_sequence", "gpt", false, true, 2});
  }
  return cases;
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(bool bias) {
    const auto linear = [&](const char* name, int in, int out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
    };
    fc1 = linear("fc1", ParallelNetImpl::kWidth, 24);
    fc2 = linear("fc2", 24, ParallelNetImpl::kVocabulary);
  }
  Tensor forward(const Tensor& x) { return fc2(torch::tanh(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Mlp);

struct GatedImpl : torch::nn::Module {
  explicit GatedImpl(bool bias) {
    const auto linear = [&](const char* name, int in, int out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
    };
    gate = linear("gate", ParallelNetImpl::kWidth, 24);
    up = linear("up", ParallelNetImpl::kWidth, 24);
    shift = linear("shift", ParallelNetImpl::kWidth, 24);
    down = linear("down", 24, ParallelNetImpl::kVocabulary);
  }
  Tensor forward(const Tensor& x) {
    const auto gated = torch::silu(gate(x));
    const auto scaled = gated * up(x);
    return down(scaled + shift(x));
  }
  torch::nn::Linear gate{nullptr}, up{nullptr}, shift{nullptr}, down{nullptr};
};
TORCH_MODULE(Gated);

std::pair<Tensor, Tensor> draw_batch(const Case& each, int step, const DeviceMesh& mesh) {
  torch::manual_seed(static_cast<std::uint64_t>(step + 10 * mesh.get_local_rank("dp")));
  if (each.net != std::string("gpt")) {
    auto x = torch::randn({8, ParallelNetImpl::kWidth});
    const auto target = torch::randint(ParallelNetImpl::kVocabulary, {8});
    if (each.sequence) x = x.chunk(mesh["tp"].size())[static_cast<std::size_t>(mesh.get_local_rank("tp"))];
    return {x.requires_grad_(), target};
  }
  const auto tokens = torch::randint(ParallelNetImpl::kVocabulary, {3, ParallelNetImpl::kLength + 1});
  return {tokens.slice(1, 0, -1), tokens.slice(1, 1).reshape({-1})};
}

using Parameters = std::vector<FSDPModule::NamedParameter>;

Parameters parameters_of(torch::nn::Module& net, const Case& each, const DeviceMesh& mesh) {
  if (each.shards > 1) {
    if (const auto layers = net.named_children().find("layers"))
      for (const auto& layer : (*layers)->children()) fully_shard(*layer, {.mesh = mesh});
    return fully_shard(net, {.mesh = mesh}).named_parameters();
  }
  Parameters all;
  for (const auto& item : net.named_parameters()) all.push_back({item.key(), item.value()});
  return all;
}

std::vector<Tensor> tensors_of(const Parameters& parameters) {
  std::vector<Tensor> all;
  for (const auto& each : parameters) all.push_back(each.parameter);
  return all;
}

tp::ParallelizePlan plan_of(const Case& each) {
  if (each.net == std::string("gpt")) return each.sequence ? sequence_plan() : tensor_plan();
  if (each.net == std::string("mlp")) return {{"fc1", tp::ColwiseParallel()}, {"fc2", tp::RowwiseParallel()}};
  return {{"", tp::PrepareModuleInput{.input_layouts = each.sequence ? tp::Shard(0) : tp::Replicate()}},
          {"gate", tp::ColwiseParallel()},
          {"up", tp::ColwiseParallel()},
          {"shift", tp::ColwiseParallel()},
          {"down", tp::RowwiseParallel()}};
}

// Two steps.
template <class Net>
std::vector<Record> train(const Case& each, Net net, const DeviceMesh& mesh) {
  tp::parallelize_module(*net, mesh["tp"], plan_of(each));
  const bool is_gpt = each.net == std::string("gpt");
  const auto parameters = parameters_of(*net, each, mesh["dp"]);
  torch::optim::SGD optimizer(tensors_of(parameters), 0.1);
  std::vector<Record> records;
  for (int step = 0; step < 2; ++step) {
    const auto [x, target] = draw_batch(each, step, mesh);
    optimizer.zero_grad();
    const auto logits = net->forward(x).flatten(0, -2);
    const auto loss = each.sequence && is_gpt ? tp::loss_parallel(logits, target, mesh["tp"])
                                              : torch::nn::functional::cross_entropy(logits, target);
    loss.backward();
    records.push_back(record_of("loss", loss));
    if (!is_gpt) records.push_back(record_of("x", x.grad()));
    for (const auto& [name, parameter] : parameters) records.push_back(record_of(name, parameter.grad()));
    optimizer.step();
  }
  return records;
}

std::vector<Record> train(const Case& each) {
  const auto mesh =
      init_device_mesh({each.shards, get_world_size() / each.shards}, {.mesh_dim_names = {"dp", "tp"}});
  torch::manual_seed(40);
  if (each.net == std::string("mlp")) return train(each, Mlp(each.bias), mesh);
  if (each.net == std::string("gated")) return train(each, Gated(each.bias), mesh);
  return train(each, ParallelNet(0, each.bias), mesh);
}

const Scenario tensor_parallel_cases("tensor parallel", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& each : cases_for(context.world_size()))
      write_records(record_file(record_folder(), each.name, context.rank()), train(each));
  });
});

double greatest_difference(const Record& python, const Record& ours) {
  if (python.values.size() != ours.values.size()) return std::numeric_limits<double>::infinity();
  double greatest = 0;
  for (std::size_t i = 0; i < ours.values.size(); ++i)
    greatest = std::max(greatest, std::abs(static_cast<double>(python.values[i]) - ours.values[i]));
  return greatest;
}

class TensorParallelParity : public ::testing::TestWithParam<int> {};

TEST_P(TensorParallelParity, LossesAndGradients) {
  std::vector<std::string> cases;
  for (const auto& each : cases_for(GetParam()))
    cases.push_back(fmt::format("name={} net={} bias={} sequence={} shards={}", each.name, each.net,
                                each.bias ? 1 : 0, each.sequence ? 1 : 0, each.shards));
  const BothSides sides("parity/tensor_parallel.py", tensor_parallel_cases, cases, "gloo", GetParam());
  ASSERT_FALSE(HasFailure());
  for (const auto& each : cases_for(GetParam())) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {} of {}", each.name, rank, GetParam()));
      const auto python = read_records(sides.python_file(each.name, rank));
      const auto ours = read_records(sides.our_file(each.name, rank));
      ASSERT_EQ(python.size(), ours.size());
      for (std::size_t i = 0; i < python.size(); ++i) {
        if (each.bias) {
          EXPECT_LT(greatest_difference(python[i], ours[i]), 1e-6) << python[i].name;
        } else {
          EXPECT_EQ(first_difference(python[i], ours[i]), "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallelParity, ::testing::Values(2, 4));

}  // namespace
}  // namespace lockstep::testing
