// SPDX-License-Identifier: BSD-3-Clause
// Parameters that change after an optimizer has taken them: ZeroRedundancyOptimizer, a Trainer's, one of ours.
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/training/trainer.h>

#include "multiprocess/changed_modules.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing::changed_optimizers_test {
namespace {

using at::Tensor;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

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
TEST(ChangedOptimizers, ZeroRedundancyOptimizerFollowsOrRefuses) {
  expect_all_passed(run_ranks(changed_zero));
}

TEST(ChangedOptimizers, ATrainerRefusesAnOptimizerOfOldParameters) {
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

TEST(ChangedOptimizers, ATrainersOptimizerMayHoldParametersOfTheLoss) {
  torch::nn::Linear head(2, 2), criterion(2, 2);
  const auto error_with = [&](const std::vector<Tensor>& parameters) {
    torch::optim::SGD optimizer(parameters, 0.1);
    Trainer trainer(*head, optimizer, {});
    return error_of<ArgumentError>([&] { (void)trainer.begin_fit(); });
  };
  EXPECT_EQ(error_with({criterion->weight}), "");
  EXPECT_EQ(error_with({head->bias, criterion->weight}), "");
}

TEST(ChangedOptimizers, AnOptimizerRefusesAParameterOfAnotherKind) {
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
}  // namespace lockstep::testing::changed_optimizers_test
