// SPDX-License-Identifier: BSD-3-Clause
// {epoch, arch, state_dict, best_acc, optimizer}: runs that go on in the other language.
#include <algorithm>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing::epoch_checkpoint_test {
namespace {

constexpr std::int64_t kHalf = 3;
constexpr std::int64_t kWhole = 6;

// Twin: train() of epoch_checkpoint.py.
struct EpochTraining {
  EpochTraining() { torch::set_num_threads(1); }

  void train(std::int64_t until) {
    while (progress.epoch < until) {
      ++progress.epoch;
      optimizer.zero_grad();
      const auto inputs =
          torch::sin(torch::arange(5 * 8, torch::kDouble) + progress.epoch).to(torch::kFloat).view({5, 8});
      torch::nn::functional::cross_entropy(net->forward(inputs), torch::arange(5).remainder(3)).backward();
      optimizer.step();
      progress.best_acc = std::max(progress.best_acc, 10.0 * static_cast<double>(progress.epoch));
    }
  }

  torch::nn::Sequential net{torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 3)};
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)};
  EpochCheckpoint progress{.arch = "sequential"};
};

class EpochCheckpoints : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }
  void in_python(const std::string& from, std::int64_t until, const std::string& to,
                 const std::string& form = "float") const {
    run_python("parity/epoch_checkpoint.py", {.args = {"train", from, std::to_string(until), to, form}});
  }

 private:
  TempFolder folder_;
};

TEST_F(EpochCheckpoints, ResumeInTheOtherLanguage) {
  in_python("-", kWhole, file("whole.pt"));
  // As Python's torch.load() returns them, including the order of keys.
  std::vector<std::string> equal_ones{"compare", file("whole.pt")};
  for (const std::string form : {"float", "int", "tensor", "example"}) {
    SCOPED_TRACE(form);
    in_python("-", kHalf, file("half.pt"), form);
    EpochTraining training;
    training.progress = load_epoch_checkpoint(load(file("half.pt")).as_dict(), training.net,
                                              training.optimizer, "sequential");
    EXPECT_EQ(training.progress.epoch, kHalf);
    EXPECT_EQ(training.progress.best_acc, 30.0);
    save(make_epoch_checkpoint(training.progress, training.net, training.optimizer), file("back.pt"));
    training.train(kWhole);
    equal_ones.push_back(file("from-" + form + ".pt"));
    save(make_epoch_checkpoint(training.progress, training.net, training.optimizer), equal_ones.back());
  }
  in_python(file("back.pt"), kWhole, file("python.pt"));
  equal_ones.push_back(file("python.pt"));
  EXPECT_NO_THROW(run_python("parity/epoch_checkpoint.py", {.args = equal_ones}));
}

TEST_F(EpochCheckpoints, OfABareModuleLoadIntoAWrappedModule) {
  in_python("-", kHalf, file("half.pt"));
  EpochTraining training;
  DataParallel wrapped(training.net, {.device_ids = {at::kCPU, at::kCPU}});
  const auto saved = load(file("half.pt"));
  load_epoch_checkpoint(saved.as_dict(), wrapped, training.optimizer);
  EXPECT_TRUE(equal(state_dict(training.net), saved["state_dict"]));
  const auto again = make_epoch_checkpoint(training.progress, wrapped, training.optimizer);
  EXPECT_TRUE(again.at("state_dict").as_dict().contains("module.0.weight"));
}

}  // namespace
}  // namespace lockstep::testing::epoch_checkpoint_test
