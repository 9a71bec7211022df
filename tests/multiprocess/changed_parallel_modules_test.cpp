// SPDX-License-Identifier: BSD-3-Clause
// Modules that change after fully_shard() or another parallel part has taken them, on all ranks or on one.
// Each change is followed, with the weights of one process on the whole batch, or refused on all ranks.
#include <chrono>
#include <string_view>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>
#include <lockstep/training/trainer.h>

#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
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

void set_trained(torch::nn::Module& module, bool trained) {
  for (const auto& parameter : module.parameters()) parameter.set_requires_grad(trained);
}

Tensor leaf(at::IntArrayRef sizes) { return torch::full(sizes, 0.25).requires_grad_(); }

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

std::string first_line(const std::string& text) { return text.substr(0, text.find("\nException raised")); }

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

// When it is closed, a Gloo group waits for calls that another rank did not make, at most this long. So only
// one change of one rank is made over Gloo.
constexpr std::chrono::seconds kTimeout(8);

bool is_tried(std::string_view backend, std::string_view change, bool on_all) {
  return on_all || backend == "shm" || change.starts_with("freeze a layer");
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

struct ParameterChange {
  const char* name;
  std::function<void(std::vector<Tensor>&, torch::optim::Optimizer&)> make;
  const char* on_all = nullptr;  // part of the error; nullptr: followed
  const char* on_one = nullptr;
};

const std::vector<ParameterChange>& parameter_changes() {
  static const std::vector<ParameterChange> all{
      {"nothing", [](auto&, auto&) {}},
      {"to double",
       [](auto& all_of, auto&) {
         for (auto& each : all_of) each.set_data(each.detach().to(torch::kDouble));
       },
       nullptr, "parameter 0 had the dtype Float and has Double"},
      {"freeze a layer", [](auto& all_of, auto&) { all_of[1].set_requires_grad(false); }, nullptr,
       "parameter 1 has been frozen"},
      {"unfreeze", [](auto& all_of, auto&) { all_of[2].set_requires_grad(true); }, nullptr,
       "parameter 2 has been unfrozen"},
      {"another shape", [](auto& all_of, auto&) { all_of[0].set_data(torch::ones({2})); },
       "parameter 0 had the shape [5] and has [2]", "parameter 0 had the shape [5] and has [2]"},
      {"replaced",
       [](auto& all_of, auto& optimizer) {
         all_of[1] = torch::full({4, 2}, 2.0).requires_grad_();
         optimizer.param_groups()[0].params()[1] = all_of[1];
       },
       nullptr, "parameter 1 has been replaced"},
      {"removed",
       [](auto& all_of, auto& optimizer) {
         all_of.pop_back();
         optimizer.param_groups()[0].params().pop_back();
       },
       "parameter 2 has been removed", "parameter 2 has been removed"},
      {"added",
       [](auto& all_of, auto& optimizer) {
         all_of.push_back(torch::ones({3}).requires_grad_());
         optimizer.add_param_group(torch::optim::OptimizerParamGroup({all_of.back()}));
       },
       nullptr, "parameter 3 has been added"},
  };
  return all;
}

std::vector<Tensor> three_parameters() {
  return {torch::full({5}, 1.0).requires_grad_(), torch::full({4, 2}, 2.0).requires_grad_(),
          torch::full({3}, 3.0)};
}

std::string step_changed(const ProcessGroup& group, const ParameterChange& change, bool here) {
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  auto own = three_parameters(), plain = three_parameters();
  ZeroRedundancyOptimizer<AdamW> optimizer(own, AdamWOptions(0.1), group);
  AdamW reference(plain, AdamWOptions(0.1));
  const auto step = [](auto& stepped, const std::vector<Tensor>& parameters) {
    for (const auto& each : parameters)
      each.mutable_grad() = each.requires_grad() ? each.detach() * 0.5 : Tensor();
    stepped.step();
  };
  step(optimizer, own);
  step(reference, plain);
  if (here) change.make(own, optimizer);
  const auto error = error_of<std::exception>([&] {
    step(optimizer, own);
    step(optimizer, own);
  });
  if (!error.empty() || change.on_all != nullptr) return first_line(error);
  change.make(plain, reference);
  step(reference, plain);
  step(reference, plain);
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(own[i].equal(plain[i])) << change.name << ": parameter " << i;
  return "";
}

const Scenario changed_zero("zero of changed parameters", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  for (const char* const backend : {"shm", "gloo"}) {
    for (const auto& change : parameter_changes()) {
      for (const bool on_all : {true, false}) {
        SCOPED_TRACE(fmt::format("{} over {}, {}", change.name, backend, on_all ? "all" : "rank 1 only"));
        if (!is_tried(backend, change.name, on_all)) continue;
        const auto group = context.new_group({0, 1}, {.timeout = kTimeout, .backend = backend});
        const auto error = step_changed(group, change, on_all || context.rank() == 1);
        const auto errors = context.group().all_gather_object(error);
        EXPECT_THAT(errors, Each(Not(HasSubstr("did not finish in time"))));
        const auto* const refused = on_all ? change.on_all : change.on_one;
        if (refused == nullptr) {
          EXPECT_THAT(errors, Each(""));
        } else {
          EXPECT_THAT(errors, Each(HasSubstr(refused)));
        }
      }
    }
  }
});
TEST(ChangedParallelModules, ZeroRedundancyOptimizerFollowsOrRefuses) {
  expect_all_passed(run_ranks(changed_zero));
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

const Scenario changed_stages("changed pipeline stages", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm"});
  const auto error_after = [&](const std::function<void(Sequential&)>& change) {
    torch::manual_seed(context.rank());
    Sequential stage(Linear(4, 4), Linear(4, 4));
    pipelining::ScheduleGPipe schedule(
        pipelining::PipelineStage(stage, context.rank(), 2), 2,
        [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
    const auto step = [&] { schedule.step({torch::ones({4, 4})}, torch::zeros({4, 4})); };
    step();
    change(stage);
    return error_of<std::exception>(step);
  };
  const auto weight = [](Sequential& stage) -> Tensor& { return stage[1]->as<Linear>()->weight; };
  EXPECT_EQ(error_after([&](auto& stage) { weight(stage).set_requires_grad(false); }), "");
  EXPECT_THAT(error_after([&](auto& stage) { stage->to(torch::kDouble); }),
              HasSubstr("parameter 0.weight was Float[4, 4] and is Double[4, 4] since the first run"));
  EXPECT_THAT(error_after([&](auto& stage) {
                weight(stage) = leaf({4, 4});
              }),
              HasSubstr("parameter 1.weight has been replaced"));
  EXPECT_THAT(error_after([&](auto& stage) { stage[1]->register_parameter("scale", leaf({4})); }),
              HasSubstr("parameter 1.scale has been added"));
});
const Scenario changed_stage_of_one("a pipeline stage changed on one rank", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto other = context.new_group({0, 1});  // the ranks' calls differ after an error
  Sequential stage(Linear(4, 4), Linear(4, 4));
  pipelining::ScheduleGPipe schedule(pipelining::PipelineStage(stage, context.rank(), 2), 2,
                                     [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
  const auto step = [&] { schedule.step({torch::ones({4, 4})}, torch::zeros({4, 4})); };
  step();
  if (context.rank() == 1) stage[1]->register_parameter("scale", leaf({4}));
  const auto errors = other.all_gather_object(first_line(error_of<std::exception>(step)));
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 of 2: stage 1: parameter 1.scale has been added")));
});
TEST(ChangedParallelModules, AChangeOfOneStageEndsTheRunOfAllRanks) {
  expect_all_passed(run_ranks(changed_stage_of_one));
}

// Two replicas of two stages. Returns the first lines of all ranks' errors after a change on some.
std::vector<std::string> errors_of_replicas(
    const Context& context, const std::function<void(int rank, torch::nn::Sequential&)>& before,
    const std::function<void(int rank, torch::nn::Sequential&)>& change, int steps = 1) {
  using torch::nn::Linear;
  const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"dp", "pp"}});
  const int index = context.rank() % 2;
  torch::manual_seed(index);
  torch::nn::Sequential stage(Linear(4, 4), Linear(4, 4), Linear(4, 4));
  before(context.rank(), stage);
  pipelining::ScheduleGPipe schedule(
      pipelining::PipelineStage(
          stage, index, 2, {.group = mesh["pp"].get_group(), .data_parallel_group = mesh["dp"].get_group()}),
      2, [](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); });
  const auto step = [&] { schedule.step({torch::ones({4, 4})}, torch::zeros({4, 4})); };
  const auto error = error_of<std::exception>([&] {
    step();
    change(context.rank(), stage);
    for (int i = 0; i < steps; ++i) step();
  });
  return context.group().all_gather_object(first_line(error));
}

const Scenario changed_replicas("replicas of a pipeline stage", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto nothing = [](int, auto&) {};
  const auto freeze = [](auto& stage, std::size_t layer) { set_trained(*stage[layer], false); };
  EXPECT_THAT(errors_of_replicas(
                  context, nothing, [&](int, auto& stage) { freeze(stage, 1); }, 2),
              Each(""));
  EXPECT_THAT(errors_of_replicas(context, nothing,
                                 [&](int rank, auto& stage) {
                                   if (rank == 3) freeze(stage, 1);
                                 }),
              Each(HasSubstr("stage 1: parameter 1.weight has been frozen")));
  // Of equal sizes, so that the calls are alike.
  const auto errors = errors_of_replicas(context, nothing, [&](int rank, auto& stage) {
    if (rank % 2 == 0) freeze(stage, rank == 0 ? 1 : 2);
  });
  EXPECT_THAT(errors, Each(HasSubstr("has been frozen")));
  EXPECT_THAT(errors[0], HasSubstr("the ranks' modules differ"));
  const auto at_first = errors_of_replicas(
      context,
      [&](int rank, auto& stage) {
        if (rank % 2 == 0) freeze(stage, rank == 0 ? 1 : 2);
      },
      nothing);
  EXPECT_THAT(at_first, Each(HasSubstr("the ranks' modules differ")));
});

const Scenario unsendable_replicas("replicas of a stage with buffers that cannot be sent", [] {
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto nothing = [](int, auto&) {};
  const auto errors_with = [&](const Tensor& mask, int ranks) {
    return errors_of_replicas(
        context,
        [&](int rank, auto& stage) {
          if (rank % 2 == 1) stage->register_buffer("mask", rank <= ranks ? mask : torch::ones({3}));
        },
        nothing);
  };
  const auto expanded = torch::ones({1}).expand({3});
  const auto of_all = errors_with(expanded, 3);
  EXPECT_THAT(of_all, Each(AllOf(HasSubstr("stage 1 of a pipeline: the tensor mask, Float[3], has several "
                                           "elements in one place"),
                                 HasSubstr("clone()"), Not(HasSubstr("params_and_buffers_to_ignore")))));
  EXPECT_THAT(errors_with(expanded, 1), Each(HasSubstr("rank 0 has buffer mask Float[3] strides [0]")));
  EXPECT_THAT(errors_with(torch::ones({2, 2}).to_sparse(), 3), Each(HasSubstr("to_dense()")));
  EXPECT_THAT(errors_with(torch::ones({3}).to(at::kFloat8_e5m2), 3), Each(HasSubstr("does not carry")));
  EXPECT_THAT(errors_with(torch::ones({4, 6}).narrow(1, 1, 2), 3), Each(""));
  EXPECT_THAT(errors_with(torch::_neg_view(torch::ones({3})), 3), Each(""));
});
TEST(ChangedParallelModules, BuffersOfReplicasThatCannotBeSentAreNamed) {
  expect_all_passed(run_ranks(unsendable_replicas, {.world_size = 4}));
}

TEST(ChangedParallelModules, ReplicasOfAStageFreezeTheSameParameters) {
  expect_all_passed(run_ranks(changed_replicas, {.world_size = 4}));
}

TEST(ChangedParallelModules, PipelinesRefuseOtherParameters) { expect_all_passed(run_ranks(changed_stages)); }

const Scenario changed_plan("changed tensor parallel module", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const auto error_after = [&](const std::function<void(Sequential&)>& change) {
    torch::manual_seed(4);
    Sequential net(Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})), Linear(4, 4));
    tensor_parallel::parallelize_module(
        *net, mesh,
        {{"0", tensor_parallel::ColwiseParallel{.output_layouts = tensor_parallel::Replicate()}},
         {"2", tensor_parallel::ColwiseParallel{.output_layouts = tensor_parallel::Replicate()}}});
    const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
    step();
    return error_of<std::exception>([&] {
      change(net);
      step();
    });
  };
  EXPECT_EQ(error_after([&](auto& net) { net[0]->template as<Linear>()->weight.set_requires_grad(false); }),
            "");
  EXPECT_THAT(error_after([&](auto& net) { net->to(torch::kDouble); }), HasSubstr("0.weight"));
  EXPECT_THAT(error_after([&](auto& net) { net[0]->template as<Linear>()->bias = leaf({4}); }),
              HasSubstr("parameter 0.bias has been replaced"));
  EXPECT_THAT(error_after([&](auto& net) {
                net[2]->template as<Linear>()->weight.set_data(torch::ones({4, 4}));
              }),
              HasSubstr("parameter 2.weight: its data was replaced"));
  EXPECT_THAT(error_after([&](auto& net) { net[1]->register_parameter("scale", leaf({4})); }),
              HasSubstr("parameter 1.scale has been added"));
});
TEST(ChangedParallelModules, ParallelizedModulesRefuseOtherParameters) {
  expect_all_passed(run_ranks(changed_plan));
}

const Scenario extended_plan("a module parallelized twice", [] {
  using torch::nn::Linear;
  const auto context = init({.backend = "shm"});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const tensor_parallel::ColwiseParallel whole_output{.output_layouts = tensor_parallel::Replicate()};
  torch::manual_seed(4);
  torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
  tensor_parallel::parallelize_module(*net, mesh, {{"0", whole_output}, {"1", whole_output}});
  net->push_back("head", Linear(4, 4));
  tensor_parallel::parallelize_module(*net, mesh, {{"head", whole_output}});
  EXPECT_EQ(error_of<std::exception>([&] { net->forward(torch::ones({2, 4})).sum().backward(); }), "");
  net[1]->register_parameter("scale", leaf({4}));
  EXPECT_THAT(error_of<std::exception>([&] {
                net->forward(torch::ones({2, 4}));
              }),
              HasSubstr("parameter 1.scale has been added"));
});
const Scenario changed_plan_of_one("a parallelized module changed on one rank", [] {
  using torch::nn::Linear;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const auto other = context.new_group({0, 1});  // the ranks' calls in the mesh's group differ after an error
  torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
  tensor_parallel::parallelize_module(
      *net, mesh, {{"0", tensor_parallel::ColwiseParallel{}}, {"1", tensor_parallel::RowwiseParallel{}}});
  const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
  step();
  if (context.rank() == 1) net[0]->register_parameter("scale", leaf({4}));
  const auto errors = other.all_gather_object(first_line(error_of<std::exception>(step)));
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 of 2: parameter 0.scale has been added")));
});
const Scenario unplanned_of_one("whole parameters of a parallelized module changed on one rank", [] {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
  const auto errors_after = [&](const std::function<void(int rank, Sequential&)>& change) {
    const auto mesh = DeviceMesh::from_group(context.new_group({0, 1}, {.timeout = kTimeout}));
    Sequential net(Linear(4, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})), Linear(4, 4),
                   Linear(4, 4));
    tensor_parallel::parallelize_module(
        *net, mesh, {{"2", tensor_parallel::ColwiseParallel{}}, {"3", tensor_parallel::RowwiseParallel{}}});
    const auto step = [&] { net->forward(torch::ones({2, 4})).sum().backward(); };
    step();
    change(context.rank(), net);
    const auto error = error_of<std::exception>([&] { step(), step(); });
    return context.group().all_gather_object(first_line(error));
  };
  const auto freeze = [](auto& net, std::size_t layer) { set_trained(*net[layer], false); };
  EXPECT_THAT(errors_after([&](int, auto& net) { freeze(net, 0); }), Each(""));
  EXPECT_THAT(errors_after([&](int rank, auto& net) {
                freeze(net, 2);
                if (rank == 0) (void)net[2]->template as<Linear>()->weight.detach().norm();
              }),
              Each(""));
  for (const std::size_t layer : {0, 1, 2}) {
    EXPECT_THAT(errors_after([&](int rank, auto& net) {
                  if (rank == 1) freeze(net, layer);
                }),
                Each(HasSubstr(fmt::format("parameter {}.weight has been frozen", layer))));
  }
  EXPECT_THAT(errors_after([&](int rank, auto& net) { freeze(net, rank == 0 ? 0 : 1); }),
              Each(HasSubstr("the ranks' modules differ")));
  EXPECT_THAT(errors_after([](int rank, auto& net) {
                if (rank == 1) net[1]->template as<torch::nn::LayerNorm>()->weight = leaf({4});
              }),
              Each(HasSubstr("parameter 1.weight has been replaced")));
});
TEST(ChangedParallelModules, ParametersOfAParallelizedModuleChangeAlike) {
  expect_all_passed(run_ranks(unplanned_of_one));
}

// No call of its forward tells the other ranks.
const Scenario silent_forward_of_one(
    "a parallelized layer frozen on one rank before a forward without calls", [] {
      const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
      const auto mesh = DeviceMesh::from_group(context.new_group({0, 1}));
      torch::nn::Linear layer(4, 4);
      tensor_parallel::parallelize_module(*layer, mesh, {{"", tensor_parallel::ColwiseParallel{}}});
      const auto step = [&] { layer->forward(leaf({2, 4})).sum().backward(); };
      step();
      if (context.rank() == 1) layer->weight.set_requires_grad(false);
      const auto errors = context.group().all_gather_object(first_line(error_of<std::exception>(step)));
      EXPECT_THAT(errors, Each(HasSubstr("parameter weight has been frozen")));
    });
TEST(ChangedParallelModules, AParallelizedLayerFrozenOnOneRankEndsTheBackwardOfOthers) {
  expect_all_passed(run_ranks(silent_forward_of_one));
}

// Rank 0 has no group with rank 3.
const Scenario plans_over_two_dimensions(
    "a module in plans over two dimensions of a mesh, frozen on one rank", [] {
      const auto context = init({.backend = "shm", .timeout = std::chrono::seconds(40)});
      const auto mesh = init_device_mesh({2, 2}, {.mesh_dim_names = {"a", "b"}});
      const tensor_parallel::ColwiseParallel whole_output{.output_layouts = tensor_parallel::Replicate()};
      torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
      tensor_parallel::parallelize_module(*net, mesh["a"], {{"0", whole_output}});
      tensor_parallel::parallelize_module(*net, mesh["b"], {{"1", whole_output}});
      const auto step = [&] { net->forward(leaf({2, 4})).sum().backward(); };
      step();
      if (context.rank() == 3) set_trained(*net[0], false);
      const auto errors = context.group().all_gather_object(first_line(error_of<std::exception>(step)));
      EXPECT_THAT(errors, Each(HasSubstr("parameter 0.weight has been frozen")));
    });
TEST(ChangedParallelModules, AChangeOnOneRankReachesTheRanksOfOtherGroups) {
  expect_all_passed(run_ranks(plans_over_two_dimensions, {.world_size = 4}));
}
TEST(ChangedParallelModules, AChangeOnOneRankEndsTheOperatorsOfAParallelizedModule) {
  expect_all_passed(run_ranks(changed_plan_of_one));
}

TEST(ChangedParallelModules, APlanMayBeExtendedByAnotherCall) { expect_all_passed(run_ranks(extended_plan)); }

TEST(ChangedParallelModules, ATrainerRefusesAnOptimizerOfOldParameters) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(*net, optimizer, {});
  const auto error = [&] { return error_of<ArgumentError>([&] { (void)trainer.begin_fit(); }); };
  EXPECT_EQ(error(), "");
  net->replace_module("1", torch::nn::Linear(2, 2).ptr());
  EXPECT_THAT(error(), HasSubstr("does not have the module's parameter 1.weight"));
  net->replace_module("0", torch::nn::Linear(2, 2).ptr());
  EXPECT_THAT(error(), HasSubstr("none of the module's parameters"));
}

TEST(ChangedParallelModules, ATrainersOptimizerMayHoldParametersOfTheLoss) {
  torch::nn::Linear head(2, 2), criterion(2, 2);
  const auto error_with = [&](const std::vector<Tensor>& parameters) {
    torch::optim::SGD optimizer(parameters, 0.1);
    Trainer trainer(*head, optimizer, {});
    return error_of<ArgumentError>([&] { (void)trainer.begin_fit(); });
  };
  EXPECT_EQ(error_with({criterion->weight}), "");
  EXPECT_EQ(error_with({head->bias, criterion->weight}), "");
}

TEST(ChangedParallelModules, AnOptimizerRefusesAParameterOfAnotherKind) {
  torch::nn::Linear net(2, 2);
  optim::NAdam optimizer(net->parameters(), 0.1);
  const auto step = [&] {
    for (const auto& each : net->parameters()) each.mutable_grad() = torch::ones_like(each);
    return error_of<ArgumentError>([&] { optimizer.step(); });
  };
  EXPECT_EQ(step(), "");
  net->zero_grad();
  net->to(torch::kDouble);
  EXPECT_THAT(
      step(),
      HasSubstr("parameter 0 of group 0 was Float[2, 2] on cpu in the last step and is Double[2, 2] on cpu"));
}

}  // namespace
}  // namespace lockstep::testing
