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
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::set_trained;

constexpr int kSteps = 6;
constexpr int kChangedStep = 3;
constexpr std::int64_t kBatch = 4;  // of each rank

struct NetImpl : torch::nn::Module {
  NetImpl() {
    shift = register_buffer("shift", torch::full({6}, 0.5));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto dtype = last->weight.scalar_type();
    auto h = torch::tanh(first->forward(x.to(first->weight.scalar_type())));
    h = torch::tanh(frozen->forward(h.to(frozen->weight.scalar_type())));
    h = norm->forward(h.to(dtype)) + named_buffers()["shift"].to(dtype);
    return last->forward(h);
  }

  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 6))};
  torch::nn::Linear frozen{register_module("frozen", torch::nn::Linear(6, 6))};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 2))};
  at::Tensor shift;
};
TORCH_MODULE(Net);

using Change = std::function<void(Net&)>;

void unfreeze(Net& net) { set_trained(*net->frozen, true); }
void freeze(Net& net) { set_trained(*net->first, false); }
void freeze_all(Net& net) { set_trained(*net, false); }
void to_double(Net& net) { net->to(torch::kDouble); }
void transpose_memory(Net& net) {
  net->first->weight.set_data(net->first->weight.detach().t().contiguous().t());
}
void reshape_parameter(Net& net) { net->norm->weight.set_data(torch::ones({1, 6})); }
void replace_layer(Net& net) { net->replace_module("last", torch::nn::Linear(6, 2)); }
void add_parameter(Net& net) { net->register_parameter("added", torch::ones({3})); }
void remove_layer(Net& net) { net->unregister_module("norm"); }
void replace_member(Net& net) { net->last->weight = torch::ones({2, 6}, torch::requires_grad()); }

struct Way {
  std::string name;
  Change change;
  // The text of the error on all ranks; empty: it is followed.
  std::string refused = {};
  DistributedDataParallelOptions options = {};
  Change later = {};  // a step later
  bool keeps_gradients = false;
  bool accumulates = false;  // the step before is in no_sync()
  double tolerance = 1e-5;
  std::function<void(DistributedDataParallel<Net>&)> prepare = {};
  std::chrono::milliseconds delay{0};  // before the forward of the changed step
};

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

at::Tensor inputs(int step) {
  torch::manual_seed(100 + step);
  return torch::randn({2 * kBatch, 4});
}

at::Tensor loss_of(const at::Tensor& output) { return output.to(torch::kDouble).pow(2).mean(); }

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

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
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

const testing::Scenario on_all_ranks("modules changed on all ranks", [] {
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
  testing::expect_all_passed(testing::run_ranks(on_all_ranks, {.env = {{"TEST_BACKEND", "shm"}}}));
}

TEST(ChangedModules, AreFollowedOrRefusedOverGloo) {
  testing::expect_all_passed(testing::run_ranks(on_all_ranks, {.env = {{"TEST_BACKEND", "gloo"}}}));
}

TEST(ChangedModules, AreFollowedOrRefusedBetweenHosts) {
  testing::expect_all_passed(
      testing::run_ranks(on_all_ranks, {.env = {{"TEST_BACKEND", "gloo"}, {"TEST_HIDES_HOST", "1"}}}));
}

const testing::Scenario on_one_rank("modules changed on one rank", [] {
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
  testing::expect_all_passed(testing::run_ranks(on_one_rank, {.env = {{"TEST_BACKEND", "shm"}}}));
}

TEST(ChangedModules, OfOneRankAreErrorsOverGloo) {
  testing::expect_all_passed(testing::run_ranks(on_one_rank, {.env = {{"TEST_BACKEND", "gloo"}}}));
}

TEST(ChangedModules, OfOneRankAreErrorsBetweenHosts) {
  testing::expect_all_passed(
      testing::run_ranks(on_one_rank, {.env = {{"TEST_BACKEND", "gloo"}, {"TEST_HIDES_HOST", "1"}}}));
}

struct TwoPathsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool first) { return last->forward(first ? one(x) : other(x)); }
  torch::nn::Linear one{register_module("one", torch::nn::Linear(2, 2))};
  torch::nn::Linear other{register_module("other", torch::nn::Linear(2, 2))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(2, 2))};
};
TORCH_MODULE(TwoPaths);

// Each rank has gradients of another layer when both leave. In one process each gradient is half of its own.
const testing::Scenario accumulated_apart("layers frozen of which each rank has accumulated another one", [] {
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
    testing::expect_all_passed(testing::run_ranks(accumulated_apart, {.env = {{"TEST_BACKEND", backend}}}));
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

const testing::Scenario with_python("a module changed on one rank of a run with Python ranks", [] {
  const auto context = init({.backend = "gloo", .timeout = std::chrono::seconds(90), .with_python = true});
  const Way way{"freeze", freeze};
  expect_ended_by_rank_1(
      context, [&] { return error_of([&] { train_wrapped(way, context.group(), context.rank() == 1); }); },
      "another rank is gone", "Python ranks cannot follow");
});

TEST(ChangedModules, OfOneRankEndTheStepOfPythonRanks) {
  const testing::TempFolder folder;
  testing::expect_all_passed(
      testing::run_ranks(with_python, {.env = {{"TEST_FOLDER", folder.path().string()}}}));
}

const testing::Scenario in_a_capture("a module changed on one rank in a capture", [] {
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
  const testing::TempFolder folder;
  testing::expect_all_passed(
      testing::run_ranks(in_a_capture, {.env = {{"TEST_FOLDER", folder.path().string()}}}));
}

const testing::Scenario past_the_wrapper("forwards past the wrapper", [] {
  const auto context = init();
  Net net;
  DistributedDataParallel ddp(net);
  optim::FusedSGD fused(ddp->parameters(), optim::FusedSGDOptions(0.1));
  optim::Adamax named(ddp->parameters());
  const auto backward = [&](auto& module) { loss_of(module->forward(inputs(context.rank()))).backward(); };
  const auto refusals = [&] {
    return std::vector{error_of([&] { fused.step(); }), error_of([&] { named.step(); }),
                       error_of([&] { state_dict(*net); }), error_of([&] { clip_grad_norm_(ddp, 1.0); })};
  };
  const auto past = HasSubstr("not averaged");
  {
    const auto alone = ddp->no_sync();
    backward(net);  // as ddp would
  }
  EXPECT_THAT(refusals(), ElementsAre("no error", "no error", "no error", past));
  backward(ddp);
  EXPECT_TRUE(ddp->has_averaged_gradients());

  backward(net);
  EXPECT_FALSE(ddp->has_averaged_gradients());
  EXPECT_THAT(refusals(), ElementsAre(past, past, past, past));
  EXPECT_THAT(error_of([&] { clip_grad_norm_(*net, 1.0); }), past) << "of the module itself";
  fused.zero_grad();  // a probe without a step does no harm
  EXPECT_THAT(refusals(), ElementsAre("no error", "no error", "no error", "no error"));
  backward(net);
  fused.zero_grad(/*set_to_none=*/false);
  EXPECT_THAT(refusals(), ElementsAre("no error", "no error", "no error", past));

  const auto output = loss_of(ddp->forward(inputs(context.rank())));
  output.backward({}, /*keep_graph=*/true);
  EXPECT_TRUE(ddp->has_averaged_gradients());
  output.backward();  // a second one, which nothing averages
  EXPECT_THAT(refusals(), ElementsAre(past, past, past, past));
  backward(ddp);  // averages what has accumulated
  EXPECT_THAT(refusals(), ElementsAre("no error", "no error", "no error", "no error"));

  torch::optim::SGD plain(ddp->parameters(), 0.1);
  backward(net);
  plain.step();
  plain.zero_grad();
  EXPECT_THAT(error_of([&] { state_dict(*net); }), past) << "the weights have diverged";
  Net other;
  load_state_dict(*net, state_dict(*other));
  EXPECT_EQ(error_of([&] { state_dict(*net); }), "no error") << "the weights are others";
});

// What refuses gradients that no backward has averaged.
std::vector<std::string> refusals_of(DistributedDataParallel<Net>& ddp, Net& net) {
  // Anew, so that none knows the parameters' former dtypes.
  optim::FusedSGD fused(net->parameters(), optim::FusedSGDOptions(0));
  optim::Adamax named(net->parameters(), 0);
  return {error_of([&] { fused.step(); }), error_of([&] { named.step(); }),
          error_of([&] { state_dict(*net); }), error_of([&] { get_model_state_dict(*net); }),
          error_of([&] { clip_grad_norm_(ddp, 1.0); })};
}

const testing::Scenario past_a_changed_wrapper("forwards past the wrapper after a change", [] {
  const auto context = init();
  const auto backward = [&](auto& module) { loss_of(module->forward(inputs(context.rank()))).backward(); };
  const DistributedDataParallelOptions low{.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}};
  const std::vector<Way> ways = {
      {"to double", to_double},
      {"to double and back", [](Net& net) { to_double(net), net->to(torch::kFloat); }},
      {"one layer to double", [](Net& net) { net->first->to(torch::kDouble); }},
      {"unfreeze", unfreeze},
      {"unfreeze what alone is trained", [](Net& net) { freeze_all(net), unfreeze(net); }},
      {"to double and unfreeze", [](Net& net) { to_double(net), unfreeze(net); }},
      {"freeze", freeze},
      {"mixed precision", [](Net&) {}, "", low},
  };
  const std::vector<Change> replacements = {
      [](Net& net) { net->last = net->replace_module("last", torch::nn::Linear(6, 2)); }, replace_member};
  for (const auto& replace : replacements) {
    Net net;
    DistributedDataParallel ddp(net);
    backward(ddp);
    freeze_all(net);
    replace(net);
    backward(net);
    EXPECT_FALSE(ddp->has_averaged_gradients()) << "of a layer that is new";
    const auto weight = net->last->weight;
    optim::FusedSGD fused({weight}, optim::FusedSGDOptions(0));
    optim::Adamax named({weight}, 0);
    ZeroRedundancyOptimizer<torch::optim::SGD> shared({weight}, torch::optim::SGDOptions(0));
    const auto errors = [&] {
      return std::vector{error_of([&] { fused.step(); }), error_of([&] { named.step(); }),
                         error_of([&] { shared.step(); })};
    };
    EXPECT_THAT(errors(), Each(HasSubstr("parameter last.weight has been added or has replaced")));
    const auto other = torch::ones({2}, torch::requires_grad());
    other.mutable_grad() = torch::ones({2});
    optim::FusedSGD of_others({other}, optim::FusedSGDOptions(0));
    EXPECT_EQ(error_of([&] { of_others.step(); }), "no error") << "it is in no wrapped module";
    net->zero_grad();
    weight.mutable_grad().reset();
    EXPECT_THAT(errors(), Each("no error"));
    if (!weight.is_same(net->named_parameters()["last.weight"])) continue;
    DistributedDataParallel anew(net);
    backward(anew);
    EXPECT_THAT(errors(), Each("no error")) << "the new wrapper averages it";
  }
  {
    Net net;
    DistributedDataParallel ddp(net);
    backward(net);
    net->zero_grad();
    for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
      net->to(dtype);
      EXPECT_THAT(refusals_of(ddp, net), Each("no error")) << "a probe without a step, then " << dtype;
    }
  }
  for (const auto& way : ways) {
    SCOPED_TRACE(way.name);
    Net net;
    DistributedDataParallel ddp(net, way.options);
    backward(ddp);
    way.change(net);
    net->zero_grad();
    backward(net);
    EXPECT_THAT(refusals_of(ddp, net), Each(HasSubstr("not averaged")));
    EXPECT_FALSE(ddp->has_averaged_gradients());
    backward(ddp);  // averages what has accumulated
    EXPECT_THAT(refusals_of(ddp, net), Each("no error"));
  }
  for (const auto& way : ways) {
    SCOPED_TRACE(way.name + ", in no_sync()");
    Net net;
    DistributedDataParallel ddp(net, way.options);
    backward(ddp);
    way.change(net);
    net->zero_grad();
    {
      const auto alone = ddp->no_sync();
      backward(ddp);
    }
    EXPECT_FALSE(ddp->has_averaged_gradients());
    EXPECT_THAT(refusals_of(ddp, net)[0], "no error");
    backward(ddp);
    EXPECT_THAT(refusals_of(ddp, net), Each("no error"));
  }
});

TEST(ForwardPastTheWrapper, IsNoticedAfterAChange) {
  testing::expect_all_passed(testing::run_ranks(past_a_changed_wrapper));
}

TEST(ForwardPastTheWrapper, IsNoticedOnceAndRefusedWhereItDoesHarm) {
  const auto results = testing::run_ranks(past_the_wrapper);
  testing::expect_all_passed(results);
  const std::string warning = "changed_modules_test.cpp:";
  for (const auto& rank : results) {
    const auto first = rank.err.find(warning);
    EXPECT_NE(first, std::string::npos) << rank.err;
    EXPECT_EQ(rank.err.find(warning, first + 1), std::string::npos) << rank.err;
  }
}

}  // namespace
}  // namespace lockstep
