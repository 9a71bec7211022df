// SPDX-License-Identifier: BSD-3-Clause
// Flipped bits in parameters and states of the optimizer, ranks that are always wrong, and many steps without a fault.
// LOCKSTEP_FAULT_ROUNDS=500 for as many flips, 50 wrong ranks and 10,000 steps; LOCKSTEP_FAULT_SEED to see them again.
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

using testing::batch_of;
using ::testing::ElementsAre;
using testing::Faults;
using testing::Flip;
using testing::Net;
using testing::rounds;

constexpr int kWorldSize = 4;
constexpr std::int64_t kInterval = 2;

int draw(std::mt19937& random, int below) {
  return static_cast<int>(random() % static_cast<unsigned>(below));
}

// The error of forward and backward, if there is one.
std::optional<VerificationError> error_of_pass(StepVerifier& verifier, DistributedDataParallel<Net>& ddp,
                                               std::int64_t step) {
  auto batch = batch_of(get_rank(), step);
  try {
    verifier.run(batch, [&](const data::Batch& each) {
      torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
    });
  } catch (const VerificationError& error) {
    return error;
  }
  return std::nullopt;
}

// Parameters, and what Adam keeps of each.
std::vector<at::Tensor> tensors_of(const Net& net, torch::optim::Adam& optimizer) {
  auto tensors = net->parameters();
  for (const auto& parameter : net->parameters()) {
    auto& state =
        static_cast<torch::optim::AdamParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
    tensors.push_back(state.exp_avg());
    tensors.push_back(state.exp_avg_sq());
  }
  return tensors;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& each : tensors) copies.push_back(each.detach().clone());
  return copies;
}

void restore(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& copies) {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(copies[i]);
}

// Whether the bits of `rank` differ from those of the next one.
bool differ_on(int rank, const std::vector<at::Tensor>& tensors) {
  const ProcessGroup& group = default_group();
  bool differ = false;
  for (const auto& each : tensors) {
    const auto words = each.detach().view(at::kInt).contiguous();
    const auto all = at::empty({kWorldSize, words.numel()}, words.options());
    group.all_gather_into_tensor(all, words.flatten());
    differ = differ || !all[rank].equal(all[(rank + 1) % kWorldSize]);
  }
  return differ;
}

// A step that is not verified and one that is, with a flip before or between them. All that has changed is undone for the
// next round.
class StateRounds {
 public:
  StateRounds() {
    for (int i = 0; i < kInterval; ++i) EXPECT_FALSE(step());
    tensors_ = tensors_of(net_, optimizer_);
    restored_ = tensors_;
    for (const auto& buffer : net_->buffers()) restored_.push_back(buffer);
    good_ = copies_of(restored_);
  }

  void play(std::mt19937& random) {
    const int victim = draw(random, kWorldSize);
    const auto index = static_cast<std::size_t>(draw(random, static_cast<int>(tensors_.size())));
    const Flip flip{.element = draw(random, 1000), .bit = draw(random, 32)};
    const bool is_early = draw(random, 2) == 0;
    const auto harm = [&] {
      const c10::NoGradGuard no_grad;
      if (get_rank() == victim) tensors_[index].copy_(testing::flipped(tensors_[index], flip));
    };
    if (is_early) harm();
    ASSERT_FALSE(step());
    if (!is_early) harm();
    const bool differ = differ_on(victim, tensors_);
    const auto error = step();
    ASSERT_EQ(error.has_value(), differ) << "tensor " << index << ", element " << flip.element << ", bit "
                                         << flip.bit << ", early " << is_early;
    if (error) {
      ++found_;
      EXPECT_THAT(error->ranks(), ElementsAre(victim));
    }
    restore(restored_, good_);
  }

  int found() const { return found_; }

 private:
  std::optional<VerificationError> step() {
    optimizer_.zero_grad();
    auto error = error_of_pass(verifier_, ddp_, step_++);
    if (!error) optimizer_.step();
    return error;
  }

  Net net_;
  DistributedDataParallel<Net> ddp_{net_};
  torch::optim::Adam optimizer_{ddp_->parameters(), 0.01};
  StepVerifier verifier_{ddp_, {.interval = kInterval, .optimizer = &optimizer_}};
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> restored_;
  std::vector<at::Tensor> good_;
  std::int64_t step_ = 0;
  int found_ = 0;
};

const testing::Scenario state_flips("verify flips in states", [] {
  const auto context = init({.backend = "shm"});
  std::mt19937 random(static_cast<unsigned>(Env().get_int(testing::kSeed).value()));
  StateRounds state;
  for (std::int64_t i = 0; i < rounds() && !::testing::Test::HasFailure(); ++i) state.play(random);
  EXPECT_GT(state.found(), 0);
  if (context.is_main_process())
    std::cout
        << fmt::format(
               "{} of {} flips in parameters and states of the optimizer were there in the next verified "
               "step, and found\n",
               state.found(), rounds())
        << std::flush;
});

// Of another net in each round, in its own steps and in what it computes for others.
const testing::Scenario wrong_ranks("verify wrong ranks", [] {
  const auto context = init({.backend = "shm"});
  std::mt19937 random(static_cast<unsigned>(Env().get_int(testing::kSeed).value()));
  std::int64_t latest = 0;  // step, in units of the longest time
  const auto count = std::max<std::int64_t>(3, rounds() / 10);
  for (std::int64_t i = 0; i < count; ++i) {
    const int victim = draw(random, kWorldSize);
    const std::int64_t interval = 1 + draw(random, 5);
    Net net;
    DistributedDataParallel ddp(net);
    torch::optim::SGD optimizer(ddp->parameters(), 0.05);
    StepVerifier verifier(ddp, {.interval = interval});
    net->faults.product = context.rank() == victim;
    std::optional<VerificationError> error;
    for (std::int64_t step = 0; !error && step < interval * kWorldSize; ++step) {
      optimizer.zero_grad();
      error = error_of_pass(verifier, ddp, 100 * i + step);
      if (!error) optimizer.step();
    }
    ASSERT_TRUE(error) << "rank " << victim << ", interval " << interval;
    EXPECT_THAT(error->ranks(), ElementsAre(victim));
    latest = std::max(latest, (error->step() + interval - 1) / interval);
  }
  if (context.is_main_process())
    std::cout << fmt::format("{} ranks that are always wrong were found, the last one in verified step {}\n",
                             count, latest)
              << std::flush;
});

const testing::Scenario healthy("verify healthy", [] {
  const auto context = init({.backend = "shm"});
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
  StepVerifier verifier(ddp, {.interval = 1, .all_ranks = true, .optimizer = &optimizer});
  const auto steps = 20 * rounds();
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto error = error_of_pass(verifier, ddp, step);
    ASSERT_FALSE(error) << error->what();
    optimizer.step();
  }
  EXPECT_EQ(verifier.verified_passes(), steps);
  if (context.is_main_process())
    std::cout << fmt::format("{} verified steps of {} ranks without an alarm\n", steps, kWorldSize)
              << std::flush;
});

TEST(VerifiedRounds, FindFlippedBitsOfStatesInTheNextVerifiedStep) { testing::run_with_seed(state_flips); }
TEST(VerifiedRounds, FindRanksThatAreAlwaysWrong) { testing::run_with_seed(wrong_ranks); }
TEST(VerifiedRounds, RaiseNoFalseAlarm) { testing::run_with_seed(healthy); }

}  // namespace
}  // namespace lockstep
