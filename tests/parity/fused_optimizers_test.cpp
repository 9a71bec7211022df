// SPDX-License-Identifier: BSD-3-Clause
// The fused optimizers beside Python's with fused=True: the same parameters, gradients and state to the last
// bit, also when the training changes sides half way.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/fused.h>
#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using optim::FusedAdam;
using optim::FusedAdamOptions;
using optim::FusedAdamW;
using optim::FusedAdamWOptions;
using optim::FusedSGD;
using optim::FusedSGDOptions;
using torch::optim::OptimizerParamGroup;

constexpr int kHalf = 12;
constexpr int kWhole = 24;

struct Case {
  std::string name;
  double lr;
  std::string what = "";
};

const std::vector<Case> kCases{{"adam", 0.01},
                               {"adam_all", 0.01},
                               {"adam_maximize", 0.01},
                               {"adam_bf16", 0.01},
                               {"adamw", 1e-3},
                               {"adamw_all", 0.01},
                               {"adamw_double", 0.01},
                               {"adamw_bf16", 0.01},
                               {"adamw_half", 0.01},
                               {"adamw_tensor", 0.01, "tensor"},
                               {"adamw_scaled", 0.01, "scaled"},
                               {"sgd", 0.1},
                               {"sgd_momentum", 0.1},
                               {"sgd_nesterov", 0.1},
                               {"sgd_bf16", 0.1},
                               {"sgd_tensor", 0.1, "tensor"},
                               {"sgd_scaled", 0.1, "scaled"}};
const std::vector<std::string> kPlain{"adam_all", "adamw_all", "sgd_momentum", "sgd"};

const Case& case_of(const std::string& name) { return *std::ranges::find(kCases, name, &Case::name); }

// `lr`: a number or a tensor.
template <typename Options, typename Rate>
Options adam_options(const std::string& name, const Rate& lr) {
  Options options(lr);
  if (name.ends_with("_all")) options.betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1).amsgrad(true);
  if (name == "adam_maximize") options.maximize(true).weight_decay(0.1);
  if (name == "adamw_half") options.maximize(true);
  if (name == "adam_bf16" || name == "adamw_scaled") options.amsgrad(true);
  return options;
}

template <typename Rate>
FusedSGDOptions sgd_options(const std::string& name, const Rate& lr) {
  FusedSGDOptions options(lr);
  if (name == "sgd" || name == "sgd_bf16") options.weight_decay(0.01);
  if (name == "sgd_momentum") options.momentum(0.9).dampening(0.5).weight_decay(0.01);
  if (name == "sgd_nesterov") options.momentum(0.9).nesterov(true).maximize(true);
  if (name == "sgd_tensor" || name == "sgd_scaled") options.momentum(0.9);
  return options;
}

template <typename Options>
std::vector<OptimizerParamGroup> two_groups(const std::vector<at::Tensor>& all, Options second) {
  return {OptimizerParamGroup({all.begin(), all.begin() + 5}),
          OptimizerParamGroup({all.begin() + 5, all.end()},
                              std::make_unique<Options>(second.weight_decay(0.25)))};
}

template <typename Rate>
std::unique_ptr<optim::FusedOptimizer> make_fused(const std::string& name, const std::vector<at::Tensor>& all,
                                                  const Rate& lr, const Rate& second) {
  if (name.starts_with("adamw")) {
    return std::make_unique<FusedAdamW>(two_groups(all, FusedAdamWOptions(second)),
                                        adam_options<FusedAdamWOptions>(name, lr));
  }
  if (name.starts_with("adam")) {
    return std::make_unique<FusedAdam>(two_groups(all, FusedAdamOptions(second)),
                                       adam_options<FusedAdamOptions>(name, lr));
  }
  return std::make_unique<FusedSGD>(two_groups(all, FusedSGDOptions(second)), sgd_options(name, lr));
}

std::unique_ptr<optim::FusedOptimizer> make_fused(const Case& with, const std::vector<at::Tensor>& all) {
  if (with.what != "tensor") return make_fused(with.name, all, with.lr, with.lr);
  const auto rate = torch::tensor(static_cast<float>(with.lr));
  return make_fused(with.name, all, rate, rate.clone());
}

class Training {
 public:
  Training(Case with, const Value& saved) : case_(std::move(with)) {
    for (const auto& value : saved["parameters"].as_items()) {
      parameters_.push_back(value.as_tensor().clone().requires_grad_());
    }
    optimizer_ = make_fused(case_, parameters_);
    load_state_dict(*optimizer_, saved["optimizer"].as_dict());
  }

  void train(int first, int last) {
    for (int number = first; number < last; ++number) step(number);
  }
  Dict saved() const {
    List parameters;
    List gradients;
    for (const auto& parameter : parameters_) {
      parameters.items.emplace_back(parameter.detach());
      gradients.items.push_back(parameter.grad().defined() ? Value(parameter.grad()) : Value(None{}));
    }
    return {{"parameters", parameters}, {"gradients", gradients}, {"optimizer", state_dict(*optimizer_)}};
  }

 private:
  void step(int number) {
    const double lr = case_.lr * std::pow(0.5, number / 5);
    optimizer_->param_groups()[0].options().set_lr(lr);
    optimizer_->param_groups()[1].options().set_lr(lr / 2);
    set_gradients(number);
    if (case_.what == "scaled") {
      optimizer_->grad_scale(torch::tensor(4.0F));
      optimizer_->found_inf(torch::tensor(number % 4 == 3 ? 1.0F : 0.0F));
    }
    optimizer_->step();
  }

  void set_gradients(int number) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + number));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto& parameter = parameters_[i];
      const auto drawn = torch::randn(parameter.sizes());
      const bool late = i >= 5 && number < 4;
      const bool none = late || (i == 3 && number % 3 == 2);
      parameter.mutable_grad() = none ? at::Tensor() : torch::empty_like(parameter.detach()).copy_(drawn);
    }
  }

  Case case_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<optim::FusedOptimizer> optimizer_;
};

class FusedParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    torch::set_num_threads(1);
    folder_ = std::make_unique<TempFolder>();
    run_python("parity/fused_optimizers.py", {.args = {"first", folder_->path().string()}});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string file(const std::string& name, const char* what) {
    return folder_->file(name + "." + what + ".pt");
  }
  static void expect_same(const Value& ours, const Value& pythons, const char* what) {
    const auto both = [&](const char* part, const Value& left, const Value& right) {
      EXPECT_TRUE(equal(left, right)) << what << ": " << part << "\n"
                                      << repr(left, 1500) << "\n"
                                      << repr(right, 1500);
    };
    both("parameters", ours["parameters"], pythons["parameters"]);
    both("gradients", ours["gradients"], pythons["gradients"]);
    both("state", ours["optimizer"]["state"], pythons["optimizer"]["state"]);
    both("groups", with_real_numbers(ours["optimizer"]["param_groups"]),
         with_real_numbers(pythons["optimizer"]["param_groups"]));
  }

  // Python's 0 as a hyper-parameter is an integer where C++ has 0.0.
  static Value with_real_numbers(const Value& groups) {
    List plain;
    for (const auto& group : groups.as_items()) {
      Dict numbers;
      for (const auto& [key, value] : group.as_dict()) {
        numbers.set(key, value.is<std::int64_t>() ? Value(static_cast<double>(value.as_int())) : value);
      }
      plain.items.emplace_back(std::move(numbers));
    }
    return plain;
  }

  static std::unique_ptr<TempFolder> folder_;
};

std::unique_ptr<TempFolder> FusedParity::folder_;

TEST_F(FusedParity, ParametersAndStateAreThoseOfPython) {
  for (const auto& with : kCases) {
    SCOPED_TRACE(with.name);
    Training training(with, load(file(with.name, "init")));
    training.train(0, kHalf);
    expect_same(training.saved(), load(file(with.name, "half")), "the first half");
    training.train(kHalf, kWhole);
    expect_same(training.saved(), load(file(with.name, "whole")), "all steps");
  }
}

TEST_F(FusedParity, ContinuesFromAStateDictOfPythonAndBack) {
  for (const auto& with : kCases) {
    SCOPED_TRACE(with.name);
    Training resumed(with, load(file(with.name, "half")));
    resumed.train(kHalf, kWhole);
    expect_same(resumed.saved(), load(file(with.name, "whole")), "Python, then C++");

    Training begun(with, load(file(with.name, "init")));
    begun.train(0, kHalf);
    save(begun.saved(), file(with.name, "cpp_half"), {.sync = false});
  }
  run_python("parity/fused_optimizers.py", {.args = {"second", folder_->path().string()}});
  for (const auto& with : kCases) {
    SCOPED_TRACE(with.name);
    expect_same(load(file(with.name, "back")), load(file(with.name, "whole")), "C++, then Python");
  }
}

TEST_F(FusedParity, ContinuesFromANonFusedOptimizer) {
  for (const auto& name : kPlain) {
    SCOPED_TRACE(name);
    Training resumed(case_of(name), load(file(name, "plain_half")));
    resumed.train(kHalf, kWhole);
    const auto ours = resumed.saved();
    const auto theirs = load(file(name, "plain_whole"));
    EXPECT_TRUE(equal(ours.at("parameters"), theirs["parameters"]));
    EXPECT_TRUE(equal(ours.at("optimizer").as_dict().at("state"), theirs["optimizer"]["state"]));
  }
}

}  // namespace
}  // namespace lockstep::testing
