// SPDX-License-Identifier: BSD-3-Clause
// Modules that change after fully_shard() or convert_sync_batchnorm() has taken them, on all ranks or on one.
// Each change is followed, with the weights of one process on the whole batch, or refused on all ranks.
#include <chrono>
#include <string_view>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>

#include "multiprocess/changed_modules.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::changed_parallel_modules_test {
namespace {

using at::Tensor;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// A layer whose registered parameters can be replaced, as subclasses do.
struct ReplaceableLinearImpl : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
  void replace_weight(const Tensor& tensor) { weight = parameters_["weight"] = tensor; }
  void reregister_weight(const Tensor& tensor) { parameters_["weight"] = tensor; }
  void drop_bias() {
    parameters_.erase("bias");
    bias = Tensor();
  }
};
TORCH_MODULE(ReplaceableLinear);

struct ChangingNetImpl : torch::nn::Module {
  ChangingNetImpl() {
    torch::manual_seed(3);
    first = register_module("first", ReplaceableLinear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 6));
    third = register_module("third", torch::nn::Linear(6, 2));
    register_buffer("scale", torch::ones({1}));
  }
  Tensor forward(const Tensor& x) {
    const auto inner = torch::tanh(first(x));
    const auto outer = third(torch::tanh(uses_second ? second(inner) : inner));
    return extra.defined() ? outer + extra : outer;
  }
  ReplaceableLinear first{nullptr};
  torch::nn::Linear second{nullptr}, third{nullptr};
  Tensor extra;
  bool uses_second = true;
};
TORCH_MODULE(ChangingNet);

struct Change {
  const char* name;
  std::function<void(ChangingNet&)> make;
  const char* refused = nullptr;  // part of the error; nullptr: all ranks may follow the change
};

// `refused` is for fully_shard().
const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      {"nothing", [](auto&) {}},
      {"to double", [](auto& net) { net->to(torch::kDouble); }, "weight: its data was replaced"},
      {"to bfloat16 and back",
       [](auto& net) {
         net->to(torch::kBFloat16);
         net->to(torch::kFloat);
       },
       "weight: its data was replaced"},
      {"one layer to double", [](auto& net) { net->third->to(torch::kDouble); },
       "weight: its data was replaced"},
      {"freeze a layer", [](auto& net) { set_trained(*net->second, false); }},
      {"freeze the first layer", [](auto& net) { set_trained(*net->first, false); }},
      {"freeze a parameter", [](auto& net) { net->second->bias.set_requires_grad(false); }},
      {"unfreeze what was frozen", [](auto& net) { net->third->weight.set_requires_grad(true); }},
      {"set_data of another shape",
       [](auto& net) {
         net->second->weight.set_data(torch::ones({6, 3}));
       },
       "weight: its data was replaced"},
      {"set_data of equal shape",
       [](auto& net) {
         net->second->weight.set_data(torch::ones({6, 6}));
       },
       "weight: its data was replaced"},
      {"set_data of another dtype",
       [](auto& net) {
         net->second->weight.set_data(torch::ones({6, 6}, torch::kDouble));
       },
       "weight: its data was replaced"},
      {"replace the member only",
       [](auto& net) {
         net->second->weight = leaf({6, 6});
       },
       "parameter second.weight has been replaced"},
      {"replace the registered one only",
       [](auto& net) {
         net->first->reregister_weight(leaf({6, 4}));
       },
       "parameter first.weight has been replaced"},
      {"replace a parameter",
       [](auto& net) {
         net->first->replace_weight(leaf({6, 4}));
       },
       "parameter first.weight has been replaced"},
      {"replace a module",
       [](auto& net) { net->second = net->replace_module("second", torch::nn::Linear(6, 6)); },
       "parameter second.weight has been replaced"},
      {"register a parameter", [](auto& net) { net->extra = net->register_parameter("extra", leaf({2})); },
       "parameter extra has been added"},
      {"register a module", [](auto& net) { net->register_module("head", torch::nn::Linear(2, 2)); },
       "parameter head.weight has been added"},
      {"register a module without parameters",
       [](auto& net) { net->register_module("act", torch::nn::ReLU()); }},
      {"unregister a module",
       [](auto& net) {
         net->unregister_module("second");
         net->uses_second = false;
       },
       "parameter second.weight has been removed"},
      {"remove a parameter", [](auto& net) { net->first->drop_bias(); },
       "parameter first.bias has been removed"},
      {"tie weights", [](auto& net) { net->first->replace_weight(net->second->weight.detach()); },
       "parameter first.weight has been replaced"},
      {"register a buffer", [](auto& net) { net->register_buffer("offset", torch::ones({3})); }},
      {"eval and train",
       [](auto& net) {
         net->eval();
         net->train();
       }},
      {"clone", [](auto& net) { (void)net->first->clone(); }},
  };
  return all;
}

struct Kind {
  const char* backend;
  bool shares_memory;
  bool in_layers;  // each layer has a group of its own
};

// Three steps, of which the change precedes the second. Returns this rank's first error.
std::string train_changed(const Context& context, const ProcessGroup& group, const Change& change,
                          const Kind& kind, bool here) {
  ChangingNet net, plain;
  for (auto* each : {&net, &plain}) (*each)->third->weight.set_requires_grad(false);
  const FullyShardOptions options{.mesh = DeviceMesh::from_group(group), .share_memory = kind.shares_memory};
  if (kind.in_layers)
    for (const auto& layer : net->children()) fully_shard(*layer, options);
  const auto sharded = fully_shard(*net, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.1), reference(plain->parameters(), 0.1);
  const auto step = [&](int number) {
    const auto batch = torch::arange(16.0).view({4, 4}).sin() + number;
    const auto part = batch.chunk(2)[static_cast<std::size_t>(context.rank())];
    optimizer.zero_grad();
    reference.zero_grad();
    net->forward(part.to(net->first->weight.scalar_type())).pow(2).mean().backward();
    optimizer.step();
    plain->forward(batch).pow(2).mean().backward();
    reference.step();
  };
  step(0);
  const auto error = error_of<std::exception>([&] {
    if (here) change.make(net);
    if (change.refused == nullptr) change.make(plain);
    step(1);
    step(2);
  });
  if (!error.empty() || change.refused != nullptr) return first_line(error);
  const auto rank = static_cast<std::size_t>(context.rank());
  const auto whole = plain->named_parameters();
  for (const auto& [name, rows] : sharded.named_parameters())
    EXPECT_TRUE(rows.allclose(whole[name].chunk(2)[rank], 1e-5, 1e-6)) << change.name << ": " << name;
  return "";
}

const Scenario changed_shards("fully_shard of changed modules", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  for (const Kind kind : {Kind{"shm", true, true}, Kind{"shm", false, true}, Kind{"gloo", false, false}}) {
    for (const auto& change : changes()) {
      for (const bool on_all : {true, false}) {
        SCOPED_TRACE(fmt::format("{} over {}, {}, {}", change.name, kind.backend,
                                 kind.shares_memory ? "shared" : "gathered",
                                 on_all ? "all ranks" : "rank 1 only"));
        if (!is_tried(kind.backend, change.name, on_all)) continue;
        const auto group = context.new_group({0, 1}, {.timeout = kTimeout, .backend = kind.backend});
        const bool here = on_all || context.rank() == 1;
        const auto error = train_changed(context, group, change, kind, here);
        const auto errors = context.group().all_gather_object(error);
        EXPECT_THAT(errors, Each(Not(HasSubstr("did not finish in time"))));
        if (change.refused != nullptr && (on_all || kind.shares_memory)) {
          EXPECT_THAT(errors, Each(HasSubstr(change.refused)));
        } else if (change.refused != nullptr) {  // an operator of one rank gathers parameters
          EXPECT_THAT(errors, Each(Not("")));
          EXPECT_THAT(errors[1], AnyOf(HasSubstr(change.refused), HasSubstr("of a parameter in the group")));
        } else if (on_all) {
          EXPECT_THAT(errors, Each(""));
        } else {  // of no effect on others, or an error on all ranks
          EXPECT_THAT(errors, AnyOf(Each(""), Each(HasSubstr("frozen")), Each(HasSubstr("in the group"))));
        }
      }
    }
  }
});
TEST(ChangedParallelModules, FullyShardFollowsOrRefuses) {
  expect_all_passed(run_ranks(changed_shards, {.timeout = std::chrono::seconds(120)}));
}

// A change of one rank ends the calls of all shard groups, not only of its own.
const Scenario changed_hybrid("fully_shard over two dimensions, changed on one rank", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"replicate", "shard"}});
  const auto errors_after = [&](const std::function<void(ChangingNet&)>& change) {
    ChangingNet net;
    const auto sharded = fully_shard(*net, {.mesh = mesh, .share_memory = false});
    const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
    step();
    const auto error = error_of<std::exception>([&] {
      if (context.rank() == 1) change(net);
      step();
    });
    return context.group().all_gather_object(first_line(error));
  };
  const auto frozen = errors_after([](auto& net) { set_trained(*net->second, false); });
  EXPECT_THAT(frozen, Each(HasSubstr("second.weight has been frozen")));
});
TEST(ChangedParallelModules, AChangeOnOneRankEndsAllShardGroups) {
  expect_all_passed(run_ranks(changed_hybrid, {.world_size = 4}));
}

// The layer is known by its weight.
const Scenario replaced_norm("replaced weight of a converted layer", [] {
  const auto context = init({.backend = "shm"});
  torch::nn::BatchNorm1d layer(2), plain(2);
  convert_sync_batchnorm(layer);
  for (auto* each : {&layer, &plain}) (*each)->weight = torch::full({2}, 3.0).requires_grad_();
  const auto batch = torch::arange(8.0).view({4, 2}).sin();
  for (int step = 0; step < 2; ++step) {
    const auto rows = 2 * context.rank();
    const auto expected = plain->forward(batch).slice(0, rows, rows + 2);
    EXPECT_TRUE(layer->forward(batch.slice(0, rows, rows + 2)).allclose(expected, 1e-5, 1e-6)) << step;
  }
});
TEST(ChangedParallelModules, AConvertedBatchNormStaysConverted) {
  expect_all_passed(run_ranks(replaced_norm));
}

const Scenario exchanged_norms("converted layers that exchange their weights", [] {
  const auto context = init({.backend = "shm"});
  std::vector<torch::nn::BatchNorm1d> layers, plain;
  for (int i = 0; i < 3; ++i) {
    for (auto* list : {&layers, &plain}) {
      list->emplace_back(2);
      torch::nn::init::constant_(list->back()->weight, i + 1);
    }
    convert_sync_batchnorm(layers.back());
  }
  for (auto* list : {&layers, &plain}) {
    std::swap((*list)[0]->weight, (*list)[1]->weight);
    std::swap((*list)[1]->weight, (*list)[2]->weight);
  }
  const auto batch = torch::arange(8.0).view({4, 2}).sin();
  const auto rows = 2 * context.rank();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto expected = plain[i]->forward(batch).slice(0, rows, rows + 2);
    EXPECT_TRUE(layers[i]->forward(batch.slice(0, rows, rows + 2)).allclose(expected, 1e-5, 1e-6)) << i;
  }
});
TEST(ChangedParallelModules, ConvertedBatchNormsMayExchangeTheirWeights) {
  expect_all_passed(run_ranks(exchanged_norms));
}

}  // namespace
}  // namespace lockstep::testing::changed_parallel_modules_test
