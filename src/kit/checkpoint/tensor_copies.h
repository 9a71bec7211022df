// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/serialize/value.h>

#include "serialize/torch_format.h"

namespace lockstep::checkpointing {

// Copies the values of `from`, on any device, to the CPU. `to` is contiguous and of its shape and dtype. Bypasses the
// caches; more than a megabyte is copied by all of LibTorch's threads.
void copy_into(const at::Tensor& to, const at::Tensor& from);

// Memory for copies of tensors, reused by the next save. Not thread-safe.
class TensorCopies {
 public:
  // Copies `tensor` to the CPU into slot `index`, whose previous copy is lost.
  at::Tensor take(std::size_t index, const at::Tensor& tensor);
  // Frees the slots from `count` on.
  void keep(std::size_t count);

 private:
  std::vector<at::Tensor> copies_;
};

// A copy of a value for a thread that writes it while training continues. Each take() reuses the memory of
// the previous copy. Not thread-safe.
class Snapshot {
 public:
  const serialize::Pickled& take(const Value& value);

 private:
  TensorCopies memory_;
  serialize::Pickled copy_;
};

}  // namespace lockstep::checkpointing
