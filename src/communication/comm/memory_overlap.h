// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include "comm/call.h"
#include "comm/tensor_memory.h"

namespace lockstep::comm {

// Whether two elements of the tensor may lie in one place, as after expand().
bool has_shared_elements(const at::Tensor& tensor);

// The bytes that a dense tensor occupies; none for a tensor with holes.
Extent extent_of(const at::Tensor& tensor);

enum class Access : std::uint8_t { read, written };

// Compares the memory of the tensors of one call as they come, without an allocation.
class ArgumentMemory {
 public:
  void add(const Extent& memory, Access access) {
    if (count_ == memory_.size()) {
      may_overlap_ = true;
      return;
    }
    for (std::size_t i = 0; i < count_; ++i) {
      const bool is_written = access == Access::written || access_[i] == Access::written;
      may_overlap_ |= is_written && memory.overlaps(memory_[i]);
    }
    memory_[count_] = memory;
    access_[count_++] = access;
  }

  // False: certainly no tensor shares memory with one that is written. True, too, if there are many tensors.
  bool may_overlap() const { return may_overlap_; }

 private:
  static constexpr std::size_t kFew = 8;  // more are sorted sooner than compared in pairs

  // Set up to count_.
  std::array<Extent, kFew> memory_;
  std::array<Access, kFew> access_;
  std::size_t count_ = 0;
  bool may_overlap_ = false;
};

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

// Finds such an overlap of which one tensor or both have holes. Takes O(n^2).
std::optional<Overlap> find_overlap_with_holes(
    at::TensorList outputs, at::TensorList inputs,
    c10::function_ref<bool(std::size_t output, std::size_t input)> is_allowed);

// What is wrong with the arguments of a call whose outputs share memory with each other or with inputs, other
// than in the forms that ProcessGroup's rules allow. Empty: nothing.
std::string overlap_complaint(const Call& call, int rank);

}  // namespace lockstep::comm
