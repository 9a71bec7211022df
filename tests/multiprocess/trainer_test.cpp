// SPDX-License-Identifier: BSD-3-Clause
// Trainer beside the loop that it stands for, interrupted and resumed, with real processes.
#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "multiprocess/trainer_points.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing::trainer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using torch::nn::functional::cross_entropy;

auto make_points_loader() {
  return data::DataLoader(Points(), {.batch_size = 4, .shuffle = true, .seed = 5});
}

// What a training program has.
struct Program {
  explicit Program(TrainerOptions options)
      : trainer(ddp, optimizer, std::move(options)), loader(make_points_loader()) {
    trainer.epoch_scheduler(schedule).on_log([this](std::int64_t step, const Scalars& scalars) {
      if (scalars.contains("loss")) losses[step] = scalars.at("loss");
    });
    torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  }
  void fit() {
    trainer.fit(loader,
                [&](auto& batch) { return cross_entropy(ddp->forward(batch.inputs), batch.targets); });
  }

  torch::nn::Sequential net = make_net();
  DistributedDataParallel<torch::nn::Sequential> ddp{net};
  torch::optim::SGD optimizer{ddp->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9)};
  optim::StepLR schedule{optimizer, 2};
  Trainer trainer;
  decltype(make_points_loader()) loader;
  std::map<std::int64_t, double> losses{};  // the last report of each step
};

TrainerOptions common_options() {
  return {.epochs = 3, .accumulation_steps = 2, .max_grad_norm = 0.4, .log_interval = 1};
}

Dict trained_by_hand() {
  auto net = make_net();
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  optim::StepLR schedule(optimizer, 2);
  auto loader = make_points_loader();
  torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  std::int64_t batches = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    loader.set_epoch(epoch);
    net->train();
    for (auto& batch : loader) {
      std::optional<NoSync> no_sync;
      if (batches % 2 == 0) no_sync.emplace(ddp->no_sync());
      (cross_entropy(ddp->forward(batch.inputs), batch.targets) / 2).backward();
      if (++batches % 2 != 0) continue;
      clip_grad_norm_(ddp, 0.4);
      optimizer.step();
      optimizer.zero_grad();
    }
    schedule.step();
  }
  return state_dict(net);
}

Dict trained_at_once() {
  Program program(common_options());
  program.fit();
  return state_dict(program.net);
}

std::string folder_of_run() { return std::getenv("TRAINER_FOLDER"); }

TrainerOptions saving_options() {
  auto options = common_options();
  options.checkpoints = folder_of_run();
  options.checkpoint_interval = 1;
  options.resume = true;
  return options;
}

const Scenario by_hand("a trainer and the loop by hand", [] {
  const auto context = init();
  EXPECT_TRUE(equal(trained_at_once(), trained_by_hand()));
});

// Stops after every step and every epoch, two of which end between two steps.
const Scenario in_pieces("a trainer that stops as often as it can", [] {
  const auto context = init();
  Program at_once(common_options());
  at_once.fit();
  std::map<std::int64_t, double> losses;
  for (int runs = 0; runs < 20; ++runs) {
    Program program(saving_options());
    if (context.rank() == runs % 2) program.trainer.stop();
    program.fit();
    losses.merge(program.losses);
    EXPECT_TRUE(program.trainer.stopped());
    if (program.trainer.epoch() != 3) continue;
    EXPECT_GT(runs, 10);
    EXPECT_EQ(program.trainer.step(), 10);
    EXPECT_TRUE(equal(state_dict(program.net), state_dict(at_once.net)));
    ASSERT_EQ(losses.size(), 10U);
    // A checkpoint between two steps has the mean of their losses over the ranks.
    for (const auto& [step, loss] : at_once.losses) EXPECT_NEAR(losses.at(step), loss, 1e-6) << step;
    return;
  }
  FAIL() << "the run never ended";
});

const Scenario killed("a trainer whose rank is killed", [] {
  const auto context = init();
  Program program(saving_options());
  program.trainer.on_step([&](const at::Tensor&) {
    if (context.rank() == 1 && program.trainer.step() == 6) std::raise(SIGKILL);
  });
  program.fit();
});

const Scenario after_kill("a trainer that continues after it", [] {
  const auto context = init();
  Program program(saving_options());
  program.fit();
  EXPECT_TRUE(equal(state_dict(program.net), trained_at_once()));
});

const Scenario signalled("a trainer that gets SIGTERM on one rank", [] {
  const auto context = init();
  auto options = saving_options();
  options.stop_signals = {SIGTERM, SIGUSR1};
  Program program(options);
  program.trainer.on_step([&](const at::Tensor&) {
    if (context.rank() == 1 && program.trainer.step() == 2) std::raise(SIGUSR1);
  });
  program.fit();
  EXPECT_TRUE(program.trainer.stopped());
  EXPECT_EQ(program.trainer.step(), 3);  // agreed on before the third step's update
  EXPECT_EQ(CheckpointManager(folder_of_run()).checkpoints().back().step, 3);
  struct sigaction now {};
  ::sigaction(SIGUSR1, nullptr, &now);
  EXPECT_NE(now.sa_handler, SIG_DFL);  // rank 0 may still get the signal of rank 1
});

const Scenario not_finite("a loss that is NaN on one rank", [] {
  const auto context = init();
  Program program(common_options());
  const auto before = state_dict(program.net);
  const auto message = error_of<NonFiniteError>([&] {
    program.trainer.fit(program.loader, [&](auto& batch) {
      const auto loss = cross_entropy(program.ddp->forward(batch.inputs), batch.targets);
      return context.rank() == 1 ? loss * std::numeric_limits<float>::quiet_NaN() : loss;
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("step 1:"), HasSubstr("rank 0: loss 1."),
                             HasSubstr("rank 1: loss nan"), HasSubstr("is module.0.weight")));
  EXPECT_EQ(program.trainer.step(), 0);
  const auto loss = torch::tensor(context.rank() == 0 ? std::numeric_limits<float>::infinity() : 1.0F);
  EXPECT_THAT(error_of<NonFiniteError>([&] { finite_or_stop(loss, program.net, 7); }),
              AllOf(HasSubstr("step 7:"), HasSubstr("rank 0: loss inf"), HasSubstr("rank 1: loss 1")));
  finite_or_stop(torch::tensor(1.0F), program.net, 8);

  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(3, 2).sparse(true));
  const auto bad = sparse->forward(torch::tensor({1})).sum() * std::numeric_limits<float>::quiet_NaN();
  bad.backward();
  EXPECT_THAT(error_of<NonFiniteError>([&] { finite_or_stop(bad, sparse, 9); }),
              HasSubstr("the first parameter whose gradient is not finite is weight"));
});

const Scenario reports("what a trainer reports and keeps", [] {
  const auto context = init();
  auto options = saving_options();
  options.log_interval = 4;
  options.metric = "distance";
  options.epochs = 10;
  options.resume = false;
  options.higher_is_better = false;
  Program program(options);
  std::vector<std::string> names;
  std::vector<double> losses, means;
  program.trainer.on_step([&](const at::Tensor& loss) { losses.push_back(loss.item<double>()); });
  program.trainer.on_log([&](std::int64_t step, const Scalars& scalars) {
    EXPECT_EQ(step, program.trainer.step());
    if (scalars.contains("loss")) means.push_back(scalars.at("loss"));
    for (const auto& [name, value] : scalars) names.push_back(name);
  });
  // Best after the second epoch.
  EarlyStopping stopping({.patience = 2});
  program.trainer.state().add("stopping", stopping);
  program.trainer.on_validate([&] {
    EXPECT_FALSE(program.net->is_training());
    EXPECT_FALSE(torch::GradMode::is_enabled());
    return Scalars{{"distance", std::abs(static_cast<double>(program.trainer.epoch() - 1))}};
  });
  program.trainer.on_epoch_end([&](const Scalars& validation) {
    if (stopping.step(validation.at("distance"))) program.trainer.stop();
  });
  program.fit();
  EXPECT_TRUE(program.trainer.stopped());
  EXPECT_EQ(program.trainer.epoch(), 4);
  EXPECT_EQ(program.trainer.step(), 14);
  EXPECT_THAT(std::vector(names.begin(), names.begin() + 5),
              ElementsAre("distance", "epoch", "grad_norm", "loss", "lr"));
  const auto own_mean = (losses[0] + losses[1] + losses[2] + losses[3]) / 4;
  EXPECT_NEAR(means.front(), reduce_value(own_mean), 1e-6);
  EXPECT_EQ(CheckpointManager(folder_of_run(), {.higher_is_better = false}).load_best()->info.step, 7);
});

const Scenario apart("a trainer on each rank", [] {
  const auto context = init();
  std::optional<ProcessGroup> group;
  for (const int rank : {0, 1}) {
    if (const auto made = new_group({rank})) group = made;
  }
  auto net = make_net();
  DistributedDataParallel ddp(net, {.process_group = group});
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  std::vector<double> losses(context.rank() == 0 ? 4 : 2, 1.0 + context.rank());
  const auto options = [&](bool resume) {
    return TrainerOptions{.epochs = resume ? 2 : 1,
                          .checkpoints = folder_of_run() + std::to_string(context.rank()),
                          .checkpoint_interval = 1,
                          .resume = resume,
                          .log_interval = 100};
  };
  for (const bool resume : {false, true}) {
    Trainer trainer(ddp, optimizer, options(resume));
    double mean = 0;
    trainer.on_log([&](std::int64_t, const Scalars& scalars) { mean = scalars.at("loss"); });
    trainer.fit(losses, [&](double loss) { return ddp->forward(torch::ones({1, 3})).sum() * 0 + loss; });
    EXPECT_EQ(mean, 1.0 + context.rank());
  }
});

// Batch statistics differ between the ranks; a validation is that of one model.
const Scenario validates("what a validation sees", [] {
  const auto context = init();
  torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  std::vector<int> batches(3);
  const auto loss_of = [&](int) {
    return ddp->forward(torch::randn({4, 3}) + static_cast<double>(context.rank())).sum();
  };
  Trainer trainer(ddp, optimizer, {});
  trainer.on_validate([&] { return Scalars{{"mean", net->buffers()[0].sum().item<double>()}}; });
  trainer.fit(batches, loss_of);
  Trainer other(ddp, optimizer, {});
  other.on_validate([&] { return Scalars{{"accuracy", 1.0 + context.rank()}, {"loss", 1.0}}; });
  EXPECT_THAT(error_of<DesyncError>([&] { other.fit(batches, loss_of); }),
              HasSubstr("validations differ in accuracy"));
  Trainer on_main(ddp, optimizer, {});
  on_main.on_validate([&] { return context.is_main_process() ? Scalars{{"accuracy", 1.0}} : Scalars{}; });
  EXPECT_THAT(error_of<DesyncError>([&] { on_main.fit(batches, loss_of); }),
              HasSubstr("return different numbers; rank 0: accuracy; rank 1: none"));
});

class TrainerRuns : public ::testing::Test {
 protected:
  std::vector<RankResult> run(const Scenario& scenario) const {
    return run_ranks(scenario, {.world_size = 2, .env = {{"TRAINER_FOLDER", folder_.path().string()}}});
  }
  TempFolder folder_;
};

TEST_F(TrainerRuns, EqualTheLoopByHandToTheBit) { expect_all_passed(run(by_hand)); }
TEST_F(TrainerRuns, EqualOneRunWhenTheyStopAfterEveryStep) { expect_all_passed(run(in_pieces)); }
TEST_F(TrainerRuns, EqualOneRunAfterAKill) {
  EXPECT_EQ(run(killed)[1].signal, SIGKILL);
  expect_all_passed(run(after_kill));
}
TEST_F(TrainerRuns, StopOnAllRanksWhenOneGetsASignal) { expect_all_passed(run(signalled)); }
TEST_F(TrainerRuns, StopOnAllRanksWhenOneLossIsNotFinite) { expect_all_passed(run(not_finite)); }
TEST_F(TrainerRuns, KeepToTheirGroup) { expect_all_passed(run(apart)); }
TEST_F(TrainerRuns, ValidateOneModel) { expect_all_passed(run(validates)); }
TEST_F(TrainerRuns, ReportAndKeepTheBest) { expect_all_passed(run(reports)); }

}  // namespace
}  // namespace lockstep::testing::trainer_test
