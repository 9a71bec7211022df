// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/tensor_copies.h"

#include <algorithm>
#include <cstring>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

namespace lockstep::checkpointing {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // bytes

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// memcpy goes round the caches, as at::copy_ does not.
void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(0, static_cast<std::int64_t>(from.nbytes()), kPiece,
                   [&](std::int64_t first, std::int64_t last) {
                     std::memcpy(target + first, source + first, static_cast<std::size_t>(last - first));
                   });
}

}  // namespace

at::Tensor TensorCopies::take(std::size_t index, const at::Tensor& tensor) {
  if (copies_.size() <= index) copies_.resize(index + 1);
  auto& copy = copies_[index];
  const bool fits =
      copy.defined() && copy.sizes() == tensor.sizes() && copy.scalar_type() == tensor.scalar_type();
  if (!fits) {
    copy.reset();  // before there is another one
    copy = at::empty(tensor.sizes(), tensor.scalar_type());
  }
  is_plain(tensor) ? copy_bytes(copy, tensor) : static_cast<void>(copy.copy_(tensor));
  return copy;
}

void TensorCopies::keep(std::size_t count) { copies_.resize(std::min(count, copies_.size())); }

}  // namespace lockstep::checkpointing
