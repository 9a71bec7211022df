// SPDX-License-Identifier: BSD-3-Clause
// {epoch, arch, state_dict, best_acc, optimizer}, with the manager that keeps best and last.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

struct SmallRun {
  explicit SmallRun(double weight = 0) {
    torch::nn::init::constant_(net->weight, weight);
    net->forward(torch::ones({1, 2})).sum().backward();
    optimizer.step();  // there is a momentum to be kept
  }
  Dict checkpoint() { return make_epoch_checkpoint(progress, net, optimizer); }
  Dict state() { return {{"net", state_dict(net)}, {"optimizer", state_dict(optimizer)}}; }

  torch::nn::Linear net{torch::nn::LinearOptions(2, 1).bias(false)};
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9)};
  EpochCheckpoint progress{.epoch = 1, .arch = "small", .best_acc = 0.25};
};

// A copy of a checkpoint that shares nothing with its run.
Dict stored(const Dict& checkpoint) { return load_bytes(save_bytes(checkpoint)).as_dict(); }

TEST(EpochCheckpoint, LoadsFromLastAndBest) {
  const TempFolder folder;
  CheckpointManager manager(folder.path(), {.keep_last = 1, .keep_best = 1});
  SmallRun run;
  const std::vector<double> accuracies{0.5, 0.75, 0.625};
  for (const auto accuracy : accuracies) {
    torch::nn::init::constant_(run.net->weight, accuracy);
    run.progress.best_acc = std::max(run.progress.best_acc, accuracy);
    manager.save(run.progress.epoch, run.checkpoint(), accuracy);
    ++run.progress.epoch;
  }
  const auto weight_in = [&](const char* link, std::int64_t epoch) {
    SmallRun other;
    const auto progress =
        load_epoch_checkpoint(load(folder.path() / link).as_dict(), other.net, other.optimizer, "small");
    EXPECT_EQ(progress.epoch, epoch);
    EXPECT_EQ(progress.arch, "small");
    EXPECT_EQ(progress.best_acc, 0.75);
    EXPECT_TRUE(equal(state_dict(other.optimizer), state_dict(run.optimizer)));
    return other.net->weight[0][0].item<double>();
  };
  EXPECT_EQ(weight_in("best.pt", 2), 0.75);
  EXPECT_EQ(weight_in("last.pt", 3), 0.625);
  EXPECT_EQ(manager.checkpoints().size(), 2U);
}

TEST(EpochCheckpoint, NamesMissingOrMistypedEntriesAndChangesNothing) {
  SmallRun saved(3);
  saved.optimizer.param_groups()[0].options().set_lr(0.125);
  SmallRun run;
  const auto before = stored(run.state());
  const auto error_with = [&](const char* name, const Value* value) {
    auto checkpoint = stored(saved.checkpoint());
    if (value == nullptr) checkpoint.erase(name);
    if (value != nullptr) checkpoint.set(name, *value);
    const auto error = error_of([&] { load_epoch_checkpoint(checkpoint, run.net, run.optimizer); });
    EXPECT_TRUE(equal(run.state(), before)) << name;
    return error;
  };
  const Value wrong(List{1, 2});
  const Value two_numbers(torch::ones({2}));
  for (const auto* name : {"epoch", "arch", "state_dict", "best_acc", "optimizer"}) {
    EXPECT_THAT(error_with(name, nullptr), HasSubstr(fmt::format("has no '{}'", name)));
    EXPECT_THAT(error_with(name, &wrong), HasSubstr(fmt::format("'{}'", name)));
    EXPECT_THAT(error_with(name, &two_numbers), HasSubstr(fmt::format("'{}'", name)));
  }
  const Value other_shape(ordered_dict({{"weight", torch::ones({5, 2})}}));
  EXPECT_THAT(error_with("state_dict", &other_shape), HasSubstr("size mismatch for weight"));
  const Value half_an_epoch(torch::tensor(1.5));
  EXPECT_THAT(error_with("epoch", &half_an_epoch), HasSubstr("'epoch'"));
}

TEST(EpochCheckpoint, RestoresTheModuleWhenACopyFailsHalfWay) {
  torch::nn::Linear saved(2, 1);
  torch::optim::SGD saved_optimizer(saved->parameters(), 0.5);
  const auto checkpoint = stored(make_epoch_checkpoint({}, saved, saved_optimizer));
  torch::nn::Linear net(2, 1);
  torch::optim::SGD optimizer(net->parameters(), 0.25);
  // The bias cannot be written: its elements share memory.
  net->bias.set_data(torch::zeros({1}).expand({2}));
  auto wide = checkpoint;
  wide["state_dict"].as_dict().set("bias", torch::ones({2}));
  const Dict before{{"net", state_dict(net)}, {"optimizer", state_dict(optimizer)}};
  const auto stored_before = stored(before);
  EXPECT_THAT(error_of([&] { load_epoch_checkpoint(wide, net, optimizer); }), HasSubstr("'state_dict'"));
  EXPECT_TRUE(equal(before, stored_before));
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
}

TEST(EpochCheckpoint, ADifferentArchIsRejectedNamingBoth) {
  SmallRun saved(3);
  SmallRun run;
  const auto before = stored(run.state());
  const auto error =
      error_of([&] { load_epoch_checkpoint(saved.checkpoint(), run.net, run.optimizer, "large"); });
  EXPECT_THAT(error, HasSubstr("'small'"));
  EXPECT_THAT(error, HasSubstr("'large'"));
  EXPECT_TRUE(equal(run.state(), before));
}

TEST(EpochCheckpoint, AcceptsNumbersInTensorsAndFurtherEntries) {
  SmallRun saved(3);
  auto checkpoint = stored(saved.checkpoint());
  checkpoint.set("epoch", torch::tensor(7));
  checkpoint.set("best_acc", torch::tensor(0.5));
  checkpoint.set("scheduler", optim::StepLR(saved.optimizer, 30).state_dict());
  SmallRun run;
  const auto progress = load_epoch_checkpoint(checkpoint, run.net, run.optimizer);
  EXPECT_EQ(progress.epoch, 7);
  EXPECT_EQ(progress.best_acc, 0.5);
  EXPECT_TRUE(equal(run.state(), saved.state()));
}

}  // namespace
}  // namespace lockstep::testing
