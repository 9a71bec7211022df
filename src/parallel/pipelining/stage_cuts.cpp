// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/stage_cuts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <source_location>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <lockstep/device/device.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/runtime/default_group.h>

#include "base/caller_place.h"
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

// By dynamic programming over the number of parts.
std::vector<std::size_t> stage_cuts(const std::vector<double>& costs, std::size_t parts) {
  const auto layers = costs.size();
  std::vector<double> sums(layers + 1);
  for (std::size_t i = 0; i < layers; ++i) sums[i + 1] = sums[i] + costs[i];
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector best(parts + 1, std::vector<double>(layers + 1, kNone));
  std::vector from(parts + 1, std::vector<std::size_t>(layers + 1));
  best[0][0] = 0;
  for (std::size_t part = 1; part <= parts; ++part) {
    for (std::size_t end = part; end <= layers; ++end) {
      for (std::size_t begin = part - 1; begin < end; ++begin) {
        const double cost = std::max(best[part - 1][begin], sums[end] - sums[begin]);
        if (cost >= best[part][end]) continue;
        best[part][end] = cost;
        from[part][end] = begin;
      }
    }
  }
  std::vector<std::size_t> begins(parts + 1, layers);
  for (auto part = parts; part > 0; --part) begins[part - 1] = from[part][begins[part]];
  return begins;
}

std::vector<torch::nn::Sequential> split_sequential(const torch::nn::Sequential& net, int num_stages,
                                                    SplitBy by) {
  std::vector<double> costs;
  for (const auto& layer : net->children()) {
    double cost = 1;
    if (by == SplitBy::parameters) {
      cost = 0;
      for (const auto& parameter : layer->parameters()) cost += static_cast<double>(parameter.numel());
    }
    costs.push_back(cost);
  }
  return split_sequential(net, num_stages, costs);
}

std::vector<torch::nn::Sequential> split_sequential(const torch::nn::Sequential& net, int num_stages,
                                                    const std::vector<double>& costs) {
  const auto names = net->named_children().keys();
  if (costs.size() != names.size())
    throw_error<ArgumentError>("split_sequential: {} costs for {} layers", costs.size(), names.size());
  if (num_stages < 1 || names.size() < static_cast<std::size_t>(num_stages))
    throw_error<ArgumentError>("split_sequential: {} layers cannot be {} stages", names.size(), num_stages);
  for (std::size_t i = 0; i < costs.size(); ++i)
    if (!std::isfinite(costs[i]) || costs[i] < 0)
      throw_error<ArgumentError>("split_sequential: layer {} has the cost {}", names[i], costs[i]);
  const auto begins = stage_cuts(costs, static_cast<std::size_t>(num_stages));
  std::vector<torch::nn::Sequential> parts;
  for (std::size_t part = 0; part + 1 < begins.size(); ++part) {
    torch::nn::Sequential sequential;
    for (auto i = begins[part]; i < begins[part + 1]; ++i)
      sequential->push_back(names[i], *(net->begin() + static_cast<std::ptrdiff_t>(i)));
    parts.push_back(sequential);
  }
  return parts;
}

std::vector<double> measure_layers(const torch::nn::Sequential& net, const Tensor& input, int repetitions,
                                   std::source_location where) {
  const CallerPlace place(where);
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
  group->all_reduce(means, ReduceOp::AVG, where);
  const auto on_cpu = means.cpu();
  const auto* const first = on_cpu.const_data_ptr<double>();
  return {first, first + on_cpu.numel()};
}

}  // namespace lockstep::pipelining
