// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace lockstep::ckpt {

// As in torch.allclose: numbers are equal if |a - b| <= atol + rtol * |b|.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

struct TensorDifference {
  std::int64_t count = 0;  // of elements that are not equal enough
  double largest = 0;      // of their absolute differences; infinite when only one is NaN
};

// Compares two tensors of one shape and dtype. NaN equals NaN. Needs little additional memory. Calls
// `advance` with the bytes of each piece that it has compared.
TensorDifference difference(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance,
                            const std::function<void(std::uint64_t)>& advance);

}  // namespace lockstep::ckpt
