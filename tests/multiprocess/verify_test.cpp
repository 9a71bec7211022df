// SPDX-License-Identifier: BSD-3-Clause
// Ranks that compute wrongly are named before the optimizer steps. LOCKSTEP_FAULT_ROUNDS=500 for as many flipped bits;
// LOCKSTEP_FAULT_SEED to see the same flips again.
#include <array>
#include <iostream>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "multiprocess/verified_net.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::batch_of;
using ::testing::ElementsAre;
using testing::Faults;
using testing::Flip;
using testing::flipped;
using ::testing::HasSubstr;
using testing::have_equal_bits;
using testing::loss_of;
using testing::Net;
using testing::rounds;

std::vector<at::Tensor> gradients_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> gradients;
  for (const auto& each : net.parameters()) gradients.push_back(each.grad());
  return gradients;
}

// Whether the faults change what this rank adds to the mean of the gradients in its next step.
bool changes_gradient(Net& net, const Faults& faults, const data::Batch& batch, int ranks) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto state = generator.get_state();
  std::vector<std::vector<at::Tensor>> gradients;
  for (const auto& each : {Faults(), faults}) {
    Net twin;
    {
      const c10::NoGradGuard no_grad;
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        twin->parameters()[i].copy_(net->parameters()[i]);
    }
    twin->faults = each;
    generator.set_state(state.clone());
    loss_of(twin, batch).backward();
    gradients.push_back(gradients_of(*twin));
    for (const auto& gradient : gradients.back()) gradient.div_(ranks);
  }
  generator.set_state(state);
  return !have_equal_bits(gradients[0], gradients[1]);
}

Faults random_faults(std::mt19937& random) {
  Faults faults;
  const Flip flip{.element = static_cast<std::int64_t>(random() % 1000),
                  .bit = static_cast<int>(random() % 32)};
  const std::array places{&faults.activation, &faults.gradient, &faults.parameter};
  *places.at(random() % places.size()) = flip;
  return faults;
}

// The error of the step, if there is one. `faults`: of the rank itself, not of what it computes for others.
std::optional<VerificationError> error_in_step(StepVerifier& verifier, DistributedDataParallel<Net>& ddp,
                                               data::Batch& batch, const Faults& faults) {
  try {
    verifier.run(batch, [&](const data::Batch& each) {
      ddp.module()->faults = verifier.is_replaying() ? Faults() : faults;
      torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
    });
  } catch (const VerificationError& error) {
    return error;
  }
  return std::nullopt;
}

const testing::Scenario flips("verify flips", [] {
  const auto context = init({.backend = "shm"});
  std::mt19937 random(static_cast<unsigned>(Env().get_int(testing::kSeed).value()));
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.05);
  StepVerifier verifier(ddp, {.interval = 1, .all_ranks = true, .optimizer = &optimizer});
  int found = 0;
  for (std::int64_t step = 0; step < rounds(); ++step) {
    const auto wrong = static_cast<int>(random() % static_cast<unsigned>(context.world_size()));
    const auto faults = random_faults(random);
    auto batch = batch_of(context.rank(), step);
    const bool is_wrong = context.rank() == wrong;
    const auto changes =
        torch::full({1}, is_wrong && changes_gradient(net, faults, batch, context.world_size()) ? 1.0 : 0.0);
    context.group().broadcast(changes, wrong);
    optimizer.zero_grad();
    const auto error = error_in_step(verifier, ddp, batch, is_wrong ? faults : Faults());
    ASSERT_EQ(error.has_value(), changes.item<float>() == 1) << "step " << step;
    if (!error) {
      optimizer.step();
      continue;
    }
    ++found;
    EXPECT_THAT(error->ranks(), ElementsAre(wrong));
    EXPECT_EQ(error->step(), step + 1);
    EXPECT_THAT(error->what(),
                HasSubstr(fmt::format("rank {} computed another gradient of {} than two other ranks", wrong,
                                      error->tensor())));
  }
  EXPECT_GT(found, 0);
  if (context.is_main_process())
    std::cout << found << " of " << rounds() << " flips changed a gradient" << std::endl;
});

TEST(StepVerifier, FindsEveryFlippedBitThatChangesAGradient) { testing::run_with_seed(flips); }

// Rank 2 is wrong in its own steps and in what it computes for rank 1.
const testing::Scenario always_wrong("verify always wrong", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.05);
  for (const bool all_ranks : {false, true}) {
    StepVerifier verifier(ddp, {.interval = 3, .all_ranks = all_ranks});
    net->faults.product = context.rank() == 2;
    std::optional<VerificationError> error;
    std::int64_t step = 0;
    for (; !error && step < 3 * context.world_size(); ++step) {
      optimizer.zero_grad();
      auto batch = batch_of(context.rank(), step);
      try {
        verifier.run(batch, [&](auto& each) {
          torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
        });
        optimizer.step();
      } catch (const VerificationError& thrown) {
        error = thrown;
      }
    }
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(2));
    EXPECT_EQ(error->step(), all_ranks ? 3 : 6);
    EXPECT_EQ(error->group(), "default");
  }
});

TEST(StepVerifier, FindsARankThatIsAlwaysWrongInTheSameWay) {
  testing::expect_all_passed(testing::run_ranks(always_wrong, {.world_size = 4}));
}

const testing::Scenario of_two("verify two", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  StepVerifier verifier(ddp, {.interval = 1});
  auto batch = batch_of(context.rank(), 0);
  const auto error =
      error_in_step(verifier, ddp, batch,
                    {.gradient = context.rank() == 0 ? std::optional(Flip{.bit = 30}) : std::nullopt});
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(0, 1));
  EXPECT_THAT(error->what(), HasSubstr("no third rank can decide which of them is wrong"));
});

TEST(StepVerifier, NamesBothOfTwoRanks) { testing::expect_all_passed(testing::run_ranks(of_two)); }

void flip_on(int rank, const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  if (get_rank() == rank) tensor.copy_(flipped(tensor, {.element = 5, .bit = 20}));
}

const testing::Scenario parameters("verify parameters", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::Adam optimizer(ddp->parameters(), 0.05);
  StepVerifier verifier(ddp, {.interval = 2, .optimizer = &optimizer});
  const auto step = [&](std::int64_t number) {
    auto batch = batch_of(context.rank(), number);
    optimizer.zero_grad();
    auto error = error_in_step(verifier, ddp, batch, {});
    if (!error) optimizer.step();
    return error;
  };
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(step(i));
  flip_on(1, net->last->weight);
  ASSERT_FALSE(step(4));
  auto error = step(5);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(1));
  EXPECT_EQ(error->tensor(), "module.last.weight");

  broadcast_module(net);
  ASSERT_FALSE(step(6));
  auto& state = *optimizer.state().at(net->first->weight.unsafeGetTensorImpl());
  flip_on(0, static_cast<torch::optim::AdamParamState&>(state).exp_avg());
  error = step(7);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(0));
  EXPECT_THAT(error->tensor(), AllOf(HasSubstr("optimizer"), HasSubstr("exp_avg")));
  EXPECT_THAT(error->what(), HasSubstr("on rank 0 differ from those of the majority of ranks"));
});

TEST(StepVerifier, FindsOtherParametersAndStatesOfTheOptimizer) {
  testing::expect_all_passed(testing::run_ranks(parameters, {.world_size = 3}));
}

}  // namespace
}  // namespace lockstep
