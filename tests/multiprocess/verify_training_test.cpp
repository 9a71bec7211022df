// SPDX-License-Identifier: BSD-3-Clause
// StepVerifier beside training without it: the results are equal to the bit, by hand and in a Trainer. LOCKSTEP_FAULT_ROUNDS=500
// for as many steps.
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "multiprocess/verified_net.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AnyOf;
using testing::batch_of;
using ::testing::ElementsAre;
using testing::Faults;
using testing::have_equal_bits;
using testing::kClasses;
using testing::kInputs;
using testing::Net;
using testing::rounds;

struct Case {
  DistributedDataParallelOptions ddp = {};
  bool set_to_none = true;
  int accumulation_steps = 1;
  CommHook hook = {};
};

// The weights, buffers and random numbers after some steps; `interval` 0: without a verifier.
std::vector<at::Tensor> trained(const Context& context, const Case& each, std::int64_t interval,
                                std::int64_t steps) {
  torch::manual_seed(7U + static_cast<unsigned>(context.rank()));
  auto own_generator =
      torch::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(context.rank()));
  Net net;
  DistributedDataParallel ddp(net, each.ddp);
  if (each.hook) ddp->register_comm_hook(each.hook);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::optional<StepVerifier> verifier;
  if (interval > 0)
    verifier.emplace(ddp, StepVerifierOptions{.interval = interval,
                                              .all_ranks = true,
                                              .accumulation_steps = each.accumulation_steps,
                                              .optimizer = &optimizer,
                                              .generators = {own_generator}});
  const auto pass = [&](const data::Batch& batch) {
    const auto noise = torch::randn(batch.data.sizes(), own_generator) + torch::rand({1});
    torch::nn::functional::cross_entropy(ddp->forward(batch.data + 0.1 * noise), batch.target).backward();
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int part = 0; part < each.accumulation_steps; ++part) {
      std::optional<NoSync> no_sync;
      if (part + 1 < each.accumulation_steps) no_sync.emplace(ddp->no_sync());
      auto batch = batch_of(context.rank(), 3 * step + part);
      verifier ? verifier->run(batch, pass) : pass(batch);
    }
    clip_grad_norm_(ddp, 1);
    optimizer.step();
    optimizer.zero_grad(each.set_to_none);
  }
  if (verifier) {
    EXPECT_EQ(verifier->verified_passes(), steps / interval * each.accumulation_steps);
  }
  auto results = net->parameters();
  for (const auto& buffer : net->buffers()) results.push_back(buffer);
  results.push_back(torch::rand({4}));
  results.push_back(torch::rand({4}, own_generator));
  return results;
}

// Of three ranks, so that a division rounds.
const testing::Scenario unharmed("verify unharmed", [] {
  const auto context = init({.backend = "shm"});
  for (const auto& each : {Case{}, Case{.ddp = {.gradient_as_bucket_view = false}},
                           Case{.set_to_none = false}, Case{.accumulation_steps = 3},
                           Case{.ddp = {.gradient_as_bucket_view = false}, .accumulation_steps = 2},
                           Case{.ddp = {.broadcast_buffers = false, .bucket_cap_mb = 0.0001}},
                           Case{.ddp = {.find_unused_parameters = true}}, Case{.ddp = {.static_graph = true}},
                           Case{.ddp = {.batched_grad_copy = true, .lazy_bucket_allocation = true}},
                           Case{.hook = bf16_compress_hook}}) {
    const auto steps = std::max<std::int64_t>(6, rounds());
    EXPECT_TRUE(have_equal_bits(trained(context, each, 0, steps), trained(context, each, 1, steps)));
    EXPECT_TRUE(have_equal_bits(trained(context, each, 0, 6), trained(context, each, 3, 6)));
  }
});

TEST(StepVerifier, RaisesNoFalseAlarmAndChangesNothing) {
  testing::expect_all_passed(
      testing::run_ranks(unharmed, {.world_size = 3, .timeout = std::chrono::seconds(600)}));
}

class Numbers {
 public:
  std::size_t size() const { return 64; }
  data::Batch get_batch(const at::Tensor& indices) const {
    return {(indices.to(at::kFloat).unsqueeze(1) + torch::arange(kInputs)).sin(),
            indices.remainder(kClasses)};
  }
};

std::vector<at::Tensor> trained_by_trainer(const TrainerOptions& options, const Faults& faults = {}) {
  torch::manual_seed(3U + static_cast<unsigned>(get_rank()));
  Net net;
  net->faults = faults;
  DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(ddp->parameters(), 1e-2);
  data::DataLoader loader(Numbers(), {.batch_size = 4, .shuffle = true});
  Trainer trainer(ddp, optimizer, options);
  trainer.fit(loader, [&](data::Batch& batch) {
    return torch::nn::functional::cross_entropy(ddp->forward(batch.data), batch.target);
  });
  auto results = net->parameters();
  for (const auto& buffer : net->buffers()) results.push_back(buffer);
  return results;
}

const testing::Scenario by_trainer("verify by trainer", [] {
  const auto context = init({.backend = "shm"});
  for (const int parts : {1, 2}) {
    TrainerOptions options{.epochs = 2, .accumulation_steps = parts, .max_grad_norm = 1};
    const auto expected = trained_by_trainer(options);
    options.verify_interval = 2;
    EXPECT_TRUE(have_equal_bits(trained_by_trainer(options), expected));
    try {
      trained_by_trainer(options, {.product = context.rank() == 1});
      ADD_FAILURE() << "no error";
    } catch (const VerificationError& error) {
      EXPECT_THAT(error.ranks(), ElementsAre(1));
      EXPECT_THAT(error.step(), AnyOf(2, 4));
    }
  }
});

TEST(StepVerifier, IsPartOfTheTrainer) {
  testing::expect_all_passed(testing::run_ranks(by_trainer, {.world_size = 3}));
}

}  // namespace
}  // namespace lockstep
