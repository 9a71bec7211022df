// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include "comm/call.h"

namespace lockstep::comm {

// Whether two elements of the tensor may lie in one place, as after expand().
bool has_shared_elements(const at::Tensor& tensor);

// The bytes that a dense tensor occupies on its device, whatever its storage; none without elements or with
// holes.
struct Extent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  bool operator==(const Extent&) const = default;
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

Extent extent_of(const at::Tensor& tensor);

// Two arguments of one call that share memory.
struct Overlap {
  std::size_t output = 0;
  std::size_t other = 0;
  bool is_input = false;  // whether `other` is an input; otherwise it is an output, and other > output
};

// Finds an output that shares memory with another output, or with an input unless `is_allowed(output,
// input)`. Inputs may share memory. The tensors are dense and on one device. Takes O(n log n).
std::optional<Overlap> find_overlap(
    at::TensorList outputs, at::TensorList inputs,
    c10::function_ref<bool(std::size_t output, std::size_t input)> is_allowed);

// What is wrong with the arguments of a call whose outputs share memory with each other or with inputs, other
// than in the forms that ProcessGroup's rules allow. Empty: nothing.
std::string overlap_complaint(const Call& call, int rank);

}  // namespace lockstep::comm
