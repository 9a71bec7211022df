// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// Throws ArgumentError that begins with `function` unless `labels` is [n] on the CPU, of an integer dtype,
// with n below 2^32: the generators of the splits draw 32 bits.
void check_labels(std::string_view function, const at::Tensor& labels);

// The samples of each class in ascending order.
std::map<std::int64_t, std::vector<std::int64_t>> samples_by_class(const at::Tensor& labels);

}  // namespace lockstep::data
