// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() beside PyTorch's: the bits of 20 steps.
#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/optim/fused.h>

#include "parity/both_sides.h"
#include "parity/ddp_record.h"
#include "support/odd_net.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using Case = std::map<std::string, std::string>;

struct StackImpl : torch::nn::Module {
  StackImpl() {
    torch::manual_seed(5);
    const std::array sizes{6, 9, 9, 4};
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      if (i > 0) layers->push_back(torch::nn::Tanh());
      layers->push_back(torch::nn::Linear(sizes[i], sizes[i + 1]));
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& tokens, bool /*uses_all*/) {
    const auto x = tokens.to(layers->parameters()[0].scalar_type()) / 11;
    return layers->forward(torch::cat({x, x.slice(1, 0, 2)}, 1)).pow(2).mean();
  }
  std::vector<std::shared_ptr<torch::nn::Module>> children_to_shard() const {
    return {layers->ptr(0), layers->ptr(2), layers->ptr(4)};
  }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Stack);

std::vector<float> floats_of(const Tensor& tensor) {
  const auto flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

FullyShardOptions options_of(const Case& words, const Context& context) {
  FullyShardOptions options;
  const auto ranks = context.world_size();
  if (words.at("mesh") == "hybrid")
    options.mesh = init_device_mesh({2, ranks / 2}, {.mesh_dim_names = {"replicate", "shard"}});
  if (words.at("dtype") != "float") options.mp_policy.param_dtype = at::kBFloat16;
  if (words.at("dtype") == "bf16_float") options.mp_policy.reduce_dtype = at::kFloat;
  const auto& reshard = words.at("reshard");
  if (reshard == "2") {
    options.reshard_after_forward = 2;
  } else if (reshard != "default") {
    options.reshard_after_forward = reshard == "true";
  }
  return options;
}

template <class Net>
std::vector<Record> train(const Case& words, const Context& context) {
  Net net;
  const auto options = options_of(words, context);
  if (words.at("groups") == "children") {
    for (const auto& child : net->children_to_shard()) fully_shard(*child, options);
  }
  const auto sharded = fully_shard(*net, options);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (words.at("optimizer") == "adamw") {
    optimizer = std::make_unique<optim::FusedAdamW>(sharded.parameters(), 1e-2);
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(sharded.parameters(),
                                                    torch::optim::SGDOptions(1e-2).momentum(0.9));
  }
  const int accumulated = std::stoi(words.at("accumulate"));
  Record losses{"loss"};
  for (int step = 0; step < 20; ++step) {
    optimizer->zero_grad();
    for (int part = 0; part < accumulated; ++part) {
      sharded.set_requires_gradient_sync(part == accumulated - 1);
      torch::manual_seed(static_cast<std::uint64_t>(1000 * step + 10 * part + context.rank()));
      const auto loss = net->forward(torch::randint(11, {2, 4}), (step + part) % 2 == 1);
      loss.backward();
      losses.values.push_back(loss.template item<float>());
      EXPECT_TRUE(std::isfinite(losses.values.back()));
    }
    optimizer->step();
  }
  std::vector<Record> records{losses};
  for (const auto& [name, parameter] : sharded.named_parameters()) {
    records.push_back({name, floats_of(parameter)});
    if (parameter.grad().defined()) records.push_back({name + ".grad", floats_of(parameter.grad())});
  }
  return records;
}

// What fully_shard.py gets.
std::vector<std::string> cases(int ranks) {
  std::vector<std::string> all;
  const auto add = [&](const char* net, const char* groups, const char* reshard, int accumulate,
                       const char* dtype, const char* optimizer, const char* mesh) {
    all.push_back(
        fmt::format("name=case{} net={} groups={} reshard={} accumulate={} dtype={} optimizer={} mesh={}",
                    all.size(), net, groups, reshard, accumulate, dtype, optimizer, mesh));
  };
  const auto* const mesh = ranks == 4 ? "hybrid" : "flat";
  add("odd", "children", "default", 1, "float", "adamw", "flat");
  add("odd", "whole", "true", 2, "float", "sgd", "flat");
  add("odd", "children", "2", 1, "float", "adamw", "flat");
  add("stack", "children", "2", 2, "bf16_float", "sgd", "flat");
  add("odd", "children", "false", 1, "bf16", "adamw", mesh);
  add("odd", "children", "true", 1, "bf16_float", "sgd", "flat");
  add("stack", "children", "default", 2, "float", "adamw", mesh);
  add("stack", "children", "true", 2, "bf16_float", "adamw", "flat");
  add("stack", "whole", "false", 1, "bf16", "sgd", mesh);
  return all;
}

const Scenario all_cases("fully_shard parity", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& line : cases(context.world_size())) {
      Case words;
      std::istringstream parts(line);
      for (std::string word; parts >> word;)
        words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
      const auto records =
          words.at("net") == "odd" ? train<OddNet>(words, context) : train<Stack>(words, context);
      write_records(record_file(record_folder(), words.at("name"), context.rank()), records);
    }
  });
});

class FullyShardParity : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(FullyShardParity, ShardsGradientsAndLossesToTheLastBit) {
  const auto& [backend, world_size] = GetParam();
  const BothSides sides("parity/fully_shard.py", all_cases, cases(world_size), backend, world_size);
  ASSERT_FALSE(HasFailure());
  for (std::size_t i = 0; i < cases(world_size).size(); ++i) {
    // From three ranks on, shm and gloo add in different orders.
    if (backend == "shm" && world_size > 2 && !cases(world_size)[i].ends_with("mesh=hybrid")) continue;
    for (int rank = 0; rank < world_size; ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {} of {}", cases(world_size)[i], rank, world_size));
      const auto name = fmt::format("case{}", i);
      const auto python = read_records(sides.python_file(name, rank));
      const auto ours = read_records(sides.our_file(name, rank));
      ASSERT_EQ(python.size(), ours.size());
      for (std::size_t k = 0; k < python.size(); ++k) EXPECT_EQ(first_difference(python[k], ours[k]), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSize, FullyShardParity,
                         ::testing::Values(std::pair{"gloo", 2}, std::pair{"gloo", 4}, std::pair{"shm", 2},
                                           std::pair{"shm", 4}),
                         [](const auto& each) {
                           return fmt::format("{}{}", each.param.first, each.param.second);
                         });

}  // namespace
}  // namespace lockstep::testing
