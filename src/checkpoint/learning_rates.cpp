// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/learning_rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::checkpointing {

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

List list_of(const std::vector<double>& numbers) {
  return List(std::vector<Value>(numbers.begin(), numbers.end()));
}

std::vector<double> numbers_in(const Value& list) {
  std::vector<double> numbers;
  for (const auto& item : list.as_items()) numbers.push_back(number_of(item));
  return numbers;
}

double number_of(const Value& value) {
  if (!value.is<at::Tensor>() && !value.is<Parameter>()) return value.as_double();
  const auto& tensor = value.as_tensor();
  if (tensor.numel() != 1 || tensor.is_complex() || tensor.is_meta()) {
    throw CheckpointError(fmt::format("expected a number, but it is {}", repr(value, 100)));
  }
  return tensor.item<double>();
}

}  // namespace lockstep::checkpointing
