// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "support/ranks.h"

// What the tests of StepVerifier train: a net whose faults each test chooses.
namespace lockstep::testing {

inline constexpr std::int64_t kInputs = 6;
inline constexpr std::int64_t kHidden = 16;
inline constexpr std::int64_t kClasses = 3;

struct Flip {
  std::int64_t element = 0;
  int bit = 0;
};

inline at::Tensor flipped(const at::Tensor& tensor, const Flip& flip) {
  const c10::NoGradGuard no_grad;
  auto copy = tensor.clone().contiguous();
  auto& value = copy.mutable_data_ptr<float>()[flip.element % copy.numel()];
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << flip.bit));
  return copy;
}

struct Faults {
  std::optional<Flip> activation = {};
  std::optional<Flip> gradient = {};   // of an activation
  std::optional<Flip> parameter = {};  // the gradient of the last weight
  bool product = false;                // one row of each product is too large
};

// The identity, but for faults.
struct Fault : torch::autograd::Function<Fault> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Faults* faults) {
    context->saved_data["faults"] = reinterpret_cast<std::int64_t>(faults);
    if (faults->activation) return flipped(x, *faults->activation);
    auto result = x.clone();
    if (faults->product) result[0] += 1e-3;
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto* const faults = reinterpret_cast<const Faults*>(context->saved_data["faults"].toInt());
    return {faults->gradient ? flipped(gradients[0], *faults->gradient) : gradients[0], at::Tensor()};
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    last->weight.register_hook([this](const at::Tensor& gradient) {
      return faults.parameter ? flipped(gradient, *faults.parameter) : gradient;
    });
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::relu(norm->forward(Fault::apply(first->forward(x), &faults)));
    return last->forward(dropout->forward(y));
  }

  Faults faults;
  torch::nn::Linear first{register_module("first", torch::nn::Linear(kInputs, kHidden))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(kHidden))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.2))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(kHidden, kClasses))};
};
TORCH_MODULE(Net);

// Another one for each rank and step, of another size on each rank.
inline data::Batch batch_of(int rank, std::int64_t step) {
  const auto size = 5 + rank;
  return {(torch::arange(size * kInputs).view({size, kInputs}) + 100 * rank + 31 * step).sin(),
          (torch::arange(size) + step).remainder(kClasses)};
}

inline at::Tensor loss_of(Net& net, const data::Batch& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
}

inline bool have_equal_bits(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others, [](const at::Tensor& one, const at::Tensor& other) {
    return std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
  });
}

inline constexpr const char* kSeed = "LOCKSTEP_FAULT_SEED";

// On four ranks. The variable kSeed has a seed, which is printed, as is what rank 0 writes.
inline void run_with_seed(const Scenario& scenario) {
  const auto seed = Env().get_int(kSeed).value_or(std::random_device()());
  std::cout << kSeed << "=" << seed << std::endl;
  const auto results = run_ranks(
      scenario,
      {.world_size = 4, .env = {{kSeed, std::to_string(seed)}}, .timeout = std::chrono::seconds(600)});
  std::cout << results.front().out << std::flush;
  expect_all_passed(results);
}

inline std::int64_t rounds() { return Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(30); }

}  // namespace lockstep::testing
