// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_real.h>

namespace lockstep::comm {

// Makes the mean of the ranks' sum, for backends without AVG. The parts of complex numbers are divided by
// themselves, as PyTorch does: a complex division makes both NaN if one is.
inline void divide(const at::Tensor& sum, int size) {
  const auto plain = sum.detach();
  (plain.is_complex() ? at::view_as_real(plain) : plain).div_(size);
}

}  // namespace lockstep::comm
