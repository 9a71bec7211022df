// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep::checkpointing {

/// Of each parameter group.
std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);

List list_of(const std::vector<double>& numbers);
/// Of a list; its items as number_of() takes them.
std::vector<double> numbers_in(const Value& list);

/// A float, an int, a bool or a tensor of one element. Throws CheckpointError saying what is there instead.
double number_of(const Value& value);

}  // namespace lockstep::checkpointing
