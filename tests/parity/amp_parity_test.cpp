// SPDX-License-Identifier: BSD-3-Clause
// Training in mixed precision beside Python: the same losses, scales and weights, also when it changes sides
// half way.
#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

constexpr int kHalf = 18;
constexpr int kWhole = 36;
const std::set<int> kInfAt{3, 4, 11, 20, 29};

struct Case {
  std::string name;
  at::ScalarType dtype;
  bool scaled = false;
  std::string what = "";
};

const std::vector<Case> kCases{{"bf16", torch::kBFloat16},
                               {"bf16_scaled", torch::kBFloat16, true},
                               {"fp16", torch::kHalf, true},
                               {"channels_last", torch::kBFloat16, false, "channels_last"},
                               {"clip", torch::kHalf, true, "clip"},
                               {"two_optimizers", torch::kHalf, true, "two"},
                               {"new_scale", torch::kHalf, true, "new_scale"},
                               {"fused_adamw", torch::kHalf, true, "fused_adamw"},
                               {"fused_sgd", torch::kHalf, true, "fused_sgd"},
                               {"fused_clip", torch::kHalf, true, "fused_adamw clip"},
                               {"disabled", torch::kBFloat16}};

class Side {
 public:
  Side(const Case& with, const Value& saved)
      : case_(with), scaler_(torch::kCPU, {.init_scale = 2, .enabled = with.scaled}) {
    if (case_.what == "two") {
      optimizers_.push_back(std::make_unique<torch::optim::SGD>(net_[0]->parameters(), 0.5));
      auto rest = net_[3]->parameters();
      for (auto& parameter : net_[5]->parameters()) rest.push_back(parameter);
      optimizers_.push_back(std::make_unique<torch::optim::RMSprop>(rest, 0.5));
    } else if (case_.what.starts_with("fused_adamw")) {
      optimizers_.push_back(std::make_unique<optim::FusedAdamW>(net_->parameters(), 0.5));
    } else if (case_.what == "fused_sgd") {
      optimizers_.push_back(std::make_unique<optim::FusedSGD>(net_->parameters(), 0.5));
    } else {
      optimizers_.push_back(std::make_unique<torch::optim::SGD>(net_->parameters(), 0.5));
    }
    load(saved);
  }

  void train(int first, int last) {
    for (int number = first; number < last; ++number) step(number);
  }
  Dict saved() const {
    List optimizers;
    for (const auto& optimizer : optimizers_) optimizers.items.emplace_back(state_dict(*optimizer));
    const auto rows = static_cast<std::int64_t>(record_.size() / 2);
    return {{"model", state_dict(net_)},
            {"optimizers", optimizers},
            {"scaler", scaler_.state_dict()},
            {"record", torch::tensor(record_, torch::kDouble).reshape({rows, 2})}};
  }

 private:
  void load(const Value& saved) {
    load_state_dict(net_, saved["model"].as_dict());
    for (std::size_t i = 0; i < optimizers_.size(); ++i) {
      load_state_dict(*optimizers_[i], saved["optimizers"].as_items()[i].as_dict());
    }
    scaler_.load_state_dict(saved["scaler"].as_dict());
    const auto record = saved["record"].as_tensor().to(torch::kDouble).contiguous();
    record_.assign(record.data_ptr<double>(), record.data_ptr<double>() + record.numel());
    if (case_.what == "channels_last") to_memory_format(*net_, at::MemoryFormat::ChannelsLast);
  }

  void step(int number) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + number));
    auto images = torch::randn({4, 3, 8, 8});
    const auto labels = torch::randint(0, 10, {4}, torch::kLong);
    if (case_.what == "channels_last") images = images.contiguous(at::MemoryFormat::ChannelsLast);
    for (auto& optimizer : optimizers_) optimizer->zero_grad();
    torch::Tensor loss;
    {
      const amp::Autocast autocast(torch::kCPU, {.dtype = case_.dtype});
      loss = torch::nn::functional::cross_entropy(net_->forward(images), labels);
    }
    scaler_.scale(loss).backward();
    spoil(number);
    if (case_.what.ends_with("clip")) {
      scaler_.unscale_(*optimizers_[0]);
      torch::nn::utils::clip_grad_norm_(net_->parameters(), 0.5);
    }
    for (auto& optimizer : optimizers_) scaler_.step(*optimizer);
    if (case_.what == "new_scale" && number % 10 == 9) {
      scaler_.update(std::exp2(number % 7 + 3));
    } else {
      scaler_.update();
    }
    record_.push_back(loss.item<double>());
    record_.push_back(scaler_.get_scale());
  }

  void spoil(int number) {
    if (!case_.scaled || !kInfAt.contains(number)) return;
    using Limits = std::numeric_limits<float>;
    net_[0]->parameters()[0].grad()[0][0][0][0] = number % 2 == 1 ? Limits::infinity() : Limits::quiet_NaN();
  }

  Case case_;
  torch::nn::Sequential net_{torch::nn::Conv2d(3, 8, 3), torch::nn::ReLU(), torch::nn::Flatten(),
                             torch::nn::Linear(288, 16), torch::nn::Tanh(), torch::nn::Linear(16, 10)};
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  amp::GradScaler scaler_;
  std::vector<double> record_;
};

class AmpParity : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    run_python("parity/amp_training.py", {.args = {"first", folder_.path().string()}});
  }
  std::string file(const Case& with, const std::string& name) const {
    return folder_.file(with.name + "." + name + ".pt");
  }
  static void expect_same(const Value& ours, const Value& pythons, const char* what) {
    for (const auto* part : {"model", "scaler", "record"}) {
      EXPECT_TRUE(equal(ours[part], pythons[part])) << what << ": " << part << "\n"
                                                    << repr(ours[part], 400) << "\n"
                                                    << repr(pythons[part], 400);
    }
    const auto states_of = [](const Value& side) {
      List states;
      for (const auto& optimizer : side["optimizers"].as_items()) states.items.push_back(optimizer["state"]);
      return states;
    };
    EXPECT_TRUE(equal(states_of(ours), states_of(pythons))) << what << ": optimizers";
  }
  TempFolder folder_;
};

TEST_F(AmpParity, LossesScalesAndWeightsAreThoseOfPython) {
  for (const auto& with : kCases) {
    SCOPED_TRACE(with.name);
    Side side(with, load(file(with, "init")));
    side.train(0, kHalf);
    save(side.saved(), file(with, "cpp_half"), {.sync = false});
    expect_same(side.saved(), load(file(with, "half")), "the first half");
    side.train(kHalf, kWhole);
    expect_same(side.saved(), load(file(with, "whole")), "all steps");

    Side resumed(with, load(file(with, "half")));
    resumed.train(kHalf, kWhole);
    expect_same(resumed.saved(), load(file(with, "whole")), "Python, then C++");
  }
  run_python("parity/amp_training.py", {.args = {"second", folder_.path().string()}});
  for (const auto& with : kCases) {
    SCOPED_TRACE(with.name);
    expect_same(load(file(with, "back")), load(file(with, "whole")), "C++, then Python");
  }
}

TEST_F(AmpParity, TheScaleMovedInBothDirections) {
  const auto record = load(file(kCases[2], "whole"))["record"].as_tensor();
  const auto scales = record.select(1, 1);
  EXPECT_LT(scales.min().item<double>(), 1024);
  EXPECT_GT(scales.max().item<double>(), 1024);
}

}  // namespace
}  // namespace lockstep::testing
