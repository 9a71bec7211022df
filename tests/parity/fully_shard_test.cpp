// SPDX-License-Identifier: BSD-3-Clause
// fully_shard() beside PyTorch's: the bits of 3 steps, or of LOCKSTEP_SHARDING_STEPS.
#include <array>
#include <cmath>
#include <cstdlib>
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

namespace lockstep::testing::fully_shard_test {
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

// Sizes that two and four ranks divide, in every dimension but one; tied.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    torch::manual_seed(3);
    embedding = register_module("embedding", torch::nn::Embedding(11, 8));
    out = register_module("out", torch::nn::Linear(12, 8));
    mix = register_parameter("mix", torch::randn({4, 8, 12}));
  }
  Tensor forward(const Tensor& tokens, bool /*uses_all*/) {
    const auto x = out(torch::matmul(embedding(tokens).flatten(0, 1), mix).tanh().mean(0));
    return torch::matmul(x, embedding->weight.t()).logsumexp(-1).mean();
  }
  std::vector<std::shared_ptr<torch::nn::Module>> children_to_shard() const { return {out.ptr()}; }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear out{nullptr};
  Tensor mix;
};
TORCH_MODULE(Wide);

// Float inputs and outputs in maps, whatever the parameters' type is.
struct ResidualImpl : torch::nn::Module {
  using Tensors = std::map<std::string, Tensor>;

  ResidualImpl() {
    torch::manual_seed(9);
    first = register_module("first", torch::nn::Linear(8, 6));
    second = register_module("second", torch::nn::Linear(6, 8));
  }
  Tensors forward(const Tensors& inputs, bool uses_all) {
    const auto x = inputs.at("x") + second(first(inputs.at("x")).tanh());
    return uses_all ? Tensors{{"x", x}, {"sum", x.sum(-1)}} : Tensors{{"x", x}};
  }
  std::vector<std::shared_ptr<torch::nn::Module>> children_to_shard() const { return {first.ptr()}; }

  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Residual);

template <class Net>
Tensor loss_of(const FSDPModule& sharded, const Net& net, const Tensor& tokens, bool uses_all) {
  return sharded.forward(net, tokens, uses_all);
}

Tensor loss_of(const FSDPModule& sharded, const Residual& net, const Tensor& tokens, bool uses_all) {
  const auto outputs =
      sharded.forward(net, ResidualImpl::Tensors{{"x", tokens.repeat({1, 2}) / 11}}, uses_all);
  auto loss = at::zeros({});
  for (const auto& [name, tensor] : outputs) {
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    loss = loss + tensor.pow(2).mean();
  }
  return loss;
}

std::vector<float> floats_of(const Tensor& tensor) {
  const auto flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

FullyShardOptions options_of(const Case& words, const Context& context) {
  FullyShardOptions options;
  const auto ranks = context.world_size();
  if (words.at("mesh") == "hybrid")
    options.mesh = init_device_mesh({2, ranks / 2}, {.mesh_dim_names = {"replicate", "shard"}});
  if (words.at("dtype") != "float")
    options.mp_policy.param_dtype = words.at("dtype") == "half" ? at::kHalf : at::kBFloat16;
  if (words.at("dtype") == "bf16_float") options.mp_policy.reduce_dtype = at::kFloat;
  if (words.at("dtype") == "bf16_output") options.mp_policy.output_dtype = at::kFloat;
  const auto& reshard = words.at("reshard");
  if (reshard == "2") {
    options.reshard_after_forward = 2;
  } else if (reshard != "default") {
    options.reshard_after_forward = reshard == "true";
  }
  if (words.at("placement") == "columns") {
    options.shard_placement_fn = [](const Tensor& parameter) -> std::optional<tensor::Placement> {
      if (parameter.dim() == 1) return std::nullopt;
      return parameter.dim() == 2 ? tensor::Shard(-1) : tensor::Shard(1);
    };
  }
  return options;
}

std::optional<Tensor> ignored_of(const torch::nn::Module& net, const Case& words) {
  const auto* const found = net.named_parameters().find(words.at("ignored"));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

template <class Net>
FSDPModule shard(const Net& net, const Case& words, const Context& context) {
  auto options = options_of(words, context);
  if (const auto ignored = ignored_of(*net, words)) options.ignored_params = {*ignored};
  const auto children = net->children_to_shard();
  auto of_children = options;
  of_children.mp_policy.output_dtype = std::nullopt;
  if (words.at("groups") == "children") {
    for (const auto& child : children) fully_shard(*child, of_children);
  } else if (words.at("groups") == "nested") {  // leaves no parameter to the net itself
    fully_shard(*children.front(), of_children);
    for (const auto& child : net->children()) fully_shard(*child, of_children);
  }
  return fully_shard(net.ptr(), options);
}

// Python's optimizers do not take sharded and ignored parameters together.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const FSDPModule& module, const Case& words) {
  std::vector<Tensor> shards;
  for (const auto& [name, parameter] : module.named_parameters())
    if (name != words.at("ignored")) shards.push_back(parameter);
  if (words.at("optimizer") == "adamw") return std::make_unique<optim::FusedAdamW>(shards, 1e-2);
  return std::make_unique<torch::optim::SGD>(shards, torch::optim::SGDOptions(1e-2).momentum(0.9));
}

template <class Net>
std::vector<Record> train(const Case& words, const Context& context) {
  Net net;
  auto sharded = shard(net, words, context);
  const auto optimizer = optimizer_of(sharded, words);
  const int accumulated = std::stoi(words.at("accumulate"));
  Record losses{"loss"};
  const int steps = std::stoi(words.at("steps"));
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    if (words.at("unshard") == "true") {
      if (step == steps / 2) sharded.set_reshard_after_forward(false);
      sharded.unshard();
    }
    for (int part = 0; part < accumulated; ++part) {
      const bool is_last = part == accumulated - 1;
      sharded.set_requires_gradient_sync(is_last || words.at("sync") == "always");
      if (words.at("all_reduce") == "last") sharded.set_requires_all_reduce(is_last);
      sharded.set_reshard_after_backward(is_last || words.at("keep") == "false");
      torch::manual_seed(static_cast<std::uint64_t>(1000 * step + 10 * part + context.rank()));
      const bool uses_all = (step + part) % 2 == 1;
      auto loss = loss_of(sharded, net, torch::randint(11, {2, 4}), uses_all);
      if (words.at("forwards") == "2")
        loss = loss + loss_of(sharded, net, torch::randint(11, {2, 4}), uses_all);
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

Case words_of(const std::string& line) {
  Case words;
  std::istringstream parts(line);
  for (std::string word; parts >> word;)
    words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return words;
}

// Lines for fully_shard.py. `mesh` and `reshard` have another meaning with four ranks.
std::vector<std::string> cases(int ranks) {
  const auto* const steps = std::getenv("LOCKSTEP_SHARDING_STEPS");
  const auto defaults =
      fmt::format("steps={} ", steps == nullptr ? "3" : steps) +
      "groups=children reshard=default accumulate=1 dtype=float optimizer=adamw mesh=flat placement=rows "
      "sync=last all_reduce=sync keep=false ignored=none unshard=false forwards=1 ";
  std::vector<std::string> all;
  const auto add = [&](const std::string& changes) {
    std::string line = fmt::format("name=case{}", all.size());
    for (const auto& [word, value] : words_of(defaults + changes)) line += fmt::format(" {}={}", word, value);
    all.push_back(line);
  };
  const std::string mesh = ranks == 4 ? " mesh=hybrid" : " mesh=flat";
  add("net=odd");
  add("net=odd groups=whole reshard=true accumulate=2 optimizer=sgd");
  add("net=odd reshard=2");
  add("net=stack reshard=2 accumulate=2 dtype=bf16_float optimizer=sgd");
  add("net=odd reshard=false dtype=bf16" + mesh);
  add("net=odd reshard=true dtype=bf16_float optimizer=sgd");
  add("net=stack accumulate=2" + mesh);
  add("net=stack reshard=true accumulate=2 dtype=bf16_float");
  add("net=stack groups=whole reshard=false dtype=bf16 optimizer=sgd" + mesh);
  add("net=wide placement=columns");
  add("net=wide placement=columns groups=whole reshard=true accumulate=2 optimizer=sgd");
  add("net=wide placement=columns reshard=false dtype=bf16 optimizer=sgd");
  add("net=wide placement=columns reshard=true accumulate=2 dtype=bf16_float" + mesh);
  add("net=odd groups=whole accumulate=3 keep=true");
  add("net=odd accumulate=2 sync=always optimizer=sgd");
  add("net=stack accumulate=2 sync=always dtype=bf16_float" + mesh);
  add("net=odd ignored=scale" + mesh);
  add("net=stack dtype=half optimizer=sgd");
  add("net=stack groups=nested reshard=true");
  add("net=odd reshard=true unshard=true");
  add("net=odd reshard=true forwards=2");
  add("net=stack accumulate=3 sync=always all_reduce=last" + mesh);
  add("net=residual dtype=bf16_output reshard=true accumulate=2" + mesh);
  return all;
}

std::vector<Record> train(const Case& words, const Context& context) {
  if (words.at("net") == "odd") return train<OddNet>(words, context);
  if (words.at("net") == "residual") return train<Residual>(words, context);
  return words.at("net") == "wide" ? train<Wide>(words, context) : train<Stack>(words, context);
}

const Scenario all_cases("fully_shard parity", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& line : cases(context.world_size())) {
      const auto words = words_of(line);
      const auto records = train(words, context);
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
    if (backend == "shm" && world_size > 2 && cases(world_size)[i].find("mesh=hybrid") == std::string::npos)
      continue;
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
}  // namespace lockstep::testing::fully_shard_test
