// SPDX-License-Identifier: BSD-3-Clause
// Trainer and TrainingState with modules of fully_shard(): DDP's bits, also after an interruption.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "multiprocess/trainer_points.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::sharded_trainer_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::functional::cross_entropy;

constexpr std::int64_t kEpochs = 2;

struct ShardedProgram {
  explicit ShardedProgram(bool shared, TrainerOptions options)
      : sharded(fully_shard(*net, {.share_memory = shared})),
        optimizer(sharded.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9)),
        trainer(net, optimizer, std::move(options)),
        loader(data::DataLoader(Points(), {.batch_size = 4, .shuffle = true, .seed = 5})) {
    torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  }
  void fit() {
    trainer.fit(loader,
                [&](auto& batch) { return cross_entropy(net->forward(batch.inputs), batch.targets); });
  }
  Dict weights() const { return get_model_state_dict(sharded, {.full_state_dict = true}); }

  torch::nn::Sequential net = make_net();
  FSDPModule sharded;
  torch::optim::SGD optimizer;
  Trainer trainer;
  data::DataLoader<Points> loader;
};

Dict weights_of_ddp(const TrainerOptions& options) {
  auto net = make_net();
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  Trainer trainer(ddp, optimizer, options);
  data::DataLoader loader(Points(), {.batch_size = 4, .shuffle = true, .seed = 5});
  torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  trainer.fit(loader, [&](auto& batch) { return cross_entropy(ddp->forward(batch.inputs), batch.targets); });
  return state_dict(net);
}

void expect_equal_weights(const Dict& ours, const Dict& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(ours.at(name).as_tensor().equal(value.as_tensor())) << name.as_string();
}

const Scenario trained_sharded("fsdp trainer", [] {
  const auto context = init({.backend = "shm"});
  const std::filesystem::path folder = *Env().get("TEST_FOLDER");
  for (const bool shared : {true, false}) {
    SCOPED_TRACE(shared);
    ShardedProgram plain(shared, {.epochs = kEpochs});
    plain.fit();
    expect_equal_weights(plain.weights(), weights_of_ddp({.epochs = kEpochs}));

    ShardedProgram clipped(shared, {.epochs = kEpochs, .max_grad_norm = 0.4});
    clipped.fit();
    for (const std::int64_t until : {4, 9, 100}) {
      ShardedProgram part(shared, {.epochs = kEpochs,
                                   .max_steps = until,
                                   .max_grad_norm = 0.4,
                                   .checkpoints = folder / (shared ? "shared" : "gathered"),
                                   .resume = true});
      part.fit();
      EXPECT_EQ(part.trainer.step(), std::min<std::int64_t>(until, 7 * kEpochs));
      if (until == 100) expect_equal_weights(part.weights(), clipped.weights());
    }
  }
});
TEST(ShardedTrainer, HasTheBitsOfDDPAndResumes) {
  const TempFolder temp;
  expect_all_passed(run_ranks(trained_sharded, {.env = {{"TEST_FOLDER", temp.path().string()}}}));
}

const Scenario trainer_errors("fsdp trainer errors", [] {
  const auto context = init({.backend = "shm"});
  ShardedProgram odd(true, {.epochs = 1, .accumulation_steps = 2, .checkpoints = *Env().get("TEST_FOLDER")});
  EXPECT_THAT(error_of([&] { odd.fit(); }),
              AllOf(HasSubstr("1 of 2 batches"), HasSubstr("accumulation_steps divide the batches")));
  ShardedProgram infinite(false, {.epochs = 1});
  EXPECT_THAT(
      error_of<NonFiniteError>([&] {
        infinite.trainer.train_batch([&] {
          return infinite.net->forward(torch::ones({2, 3})).sum() * std::numeric_limits<float>::infinity();
        });
      }),
      HasSubstr("not finite is 0.weight"));
  EXPECT_THAT(error_of([&] { optim::Adafactor wrong(infinite.sharded.parameters()); }),
              AllOf(HasSubstr("Adafactor: "), HasSubstr("norms of whole parameters")));
});
TEST(ShardedTrainer, ErrorsSayWhatToDo) {
  const TempFolder temp;
  expect_all_passed(run_ranks(trainer_errors, {.env = {{"TEST_FOLDER", temp.path().string()}}}));
}

// States that do not exist yet have a place in the dict, and the optimizer continues as if nobody had asked.
const Scenario asked_early("fsdp asked early", [] {
  const auto context = init({.backend = "shm"});
  auto net = make_net();
  const auto sharded = fully_shard(*net);
  torch::optim::AdamW optimizer(sharded.parameters(), 1e-2);
  TrainingState training;
  training.add("model", sharded).add("optimizer", optimizer);
  const auto state = training.state_dict();
  const auto& first = state.at("optimizer")["state"].as_dict().at(0);
  EXPECT_EQ(first["step"].as_tensor().item<double>(), 0);
  EXPECT_EQ(std::get<ShardedTensor>(first["exp_avg"].variant()).size, (std::vector<std::int64_t>{8, 3}));
  EXPECT_TRUE(optimizer.state().empty());
  training.load_state_dict(state);
  EXPECT_EQ(optimizer.state().size(), 4);
  auto& moment = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().begin()->second);
  EXPECT_EQ(moment.step(), 0);
});
TEST(ShardedTrainingState, HasStatesBeforeTheFirstStep) { expect_all_passed(run_ranks(asked_early)); }

}  // namespace
}  // namespace lockstep::testing::sharded_trainer_test
