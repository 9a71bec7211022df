// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <source_location>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <lockstep/device/device.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/runtime/default_group.h>

#include "base/throw_error.h"
#include "modules/agreement.h"
#include "runtime/run.h"

namespace lockstep::pipelining {
namespace {

using at::Tensor;

// Buffers and the random stream are afterwards as they were.
class Unchanged {
 public:
  explicit Unchanged(const torch::nn::Module& module)
      : buffers_(module.buffers()), random_state_(default_generator().get_state()) {
    for (const auto& each : buffers_) values_.push_back(each.detach().clone());
  }
  ~Unchanged() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(values_[i]);
    default_generator().set_state(random_state_);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  Tensors buffers_, values_;
  Tensor random_state_;
};

template <typename Action>
double seconds_of(const at::Device& device, const Action& action) {
  using Clock = std::chrono::steady_clock;
  synchronize(device);
  const auto start = Clock::now();
  action();
  synchronize(device);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of forward and backward. `x` becomes the output of the layer.
double layer_seconds(torch::nn::AnyModule layer, Tensor& x) {
  Tensors wanted;
  for (const auto& parameter : layer.ptr()->parameters())
    if (parameter.requires_grad()) wanted.push_back(parameter);
  if (x.requires_grad()) wanted.push_back(x);
  const auto input = x.clone();  // a layer may change its input, but not a leaf
  Tensor y;
  auto seconds = seconds_of(x.device(), [&] { y = layer.forward(input); });
  if (y.requires_grad() && !wanted.empty()) {
    const auto gradient = at::ones_like(y);
    seconds += seconds_of(y.device(), [&] {
      // Unlike backward(), it leaves the gradients of the parameters as they are.
      torch::autograd::grad({y}, wanted, {gradient}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                            /*allow_unused=*/true);
    });
  }
  x = y.detach();
  if (x.is_floating_point()) x.requires_grad_();
  return seconds;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> medians_of(const torch::nn::Sequential& net, const Tensor& input, int repetitions) {
  if (repetitions < 1)
    throw_error<ArgumentError>("measure_layers: {} repetitions; use at least 1", repetitions);
  const Unchanged unchanged(*net);
  const at::AutoGradMode with_history(true);
  std::vector<std::vector<double>> all(net->size());
  for (int run = 0; run <= repetitions; ++run) {
    auto x = input.detach().requires_grad_(input.requires_grad());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto seconds = layer_seconds(*(net->begin() + static_cast<std::ptrdiff_t>(i)), x);
      if (run > 0) all[i].push_back(seconds);  // the first run touches memory for the first time
    }
  }
  std::vector<double> medians;
  for (const auto& each : all) medians.push_back(median(each));
  return medians;
}

}  // namespace

std::vector<double> measure_layers(const torch::nn::Sequential& net, const Tensor& input, int repetitions) {
  const auto where = std::source_location::current();
  const auto group = runtime::group_or_default({}, "measure_layers()");
  if (!group) return medians_of(net, input, repetitions);
  const auto medians = modules::tell_on_failure({*group}, "measure_layers()", where,
                                                [&] { return medians_of(net, input, repetitions); });
  modules::check_same_on_all_ranks(*group,
                                   {.user = "measure_layers()",
                                    .lines = fmt::format("a net of {} layers\n", medians.size()),
                                    .advice = "Measure the same net on every rank"},
                                   where);
  if (medians.empty()) return medians;
  // Ranks that measure other times would cut the net in other places.
  const auto means = torch::tensor(medians, at::kDouble).to(input.device());
  group->all_reduce(means, ReduceOp::AVG);
  const auto on_cpu = means.cpu();
  const auto* const first = on_cpu.const_data_ptr<double>();
  return {first, first + on_cpu.numel()};
}

}  // namespace lockstep::pipelining
