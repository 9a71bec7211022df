// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_difference.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <ATen/ATen.h>

namespace lockstep::ckpt {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // elements

at::Tensor flat(const at::Tensor& tensor) {
  const auto dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  return dense.detach().resolve_conj().resolve_neg().reshape(-1);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// double has too few digits for all of these.
bool is_wide_integer(at::ScalarType type) { return type == at::kLong || type == at::kUInt64; }

at::Tensor widened(const at::Tensor& piece) {
  return piece.to(piece.is_complex() ? at::kComplexDouble : at::kDouble);
}

TensorDifference difference_of_pieces(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance) {
  const auto left = widened(a);
  const auto right = widened(b);
  // Where both are the same infinity or both NaN the difference is NaN, but there is none.
  const auto same = left.eq(right).logical_or(left.isnan().logical_and(right.isnan()));
  const auto distance =
      (left - right)
          .abs()
          .masked_fill(same, 0)
          .nan_to_num(std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity());
  auto beyond = distance.gt(right.abs().nan_to_num(0, 0).mul(tolerance.rtol).add(tolerance.atol));
  if (is_wide_integer(a.scalar_type()) && tolerance.rtol == 0 && tolerance.atol == 0) {
    beyond = a.view(at::kLong).ne(b.view(at::kLong));
  }
  const auto count = beyond.sum().item<std::int64_t>();
  return {.count = count, .largest = count == 0 ? 0 : distance.max().item<double>()};
}

}  // namespace

TensorDifference difference(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance,
                            const std::function<void(std::uint64_t)>& advance) {
  const auto left = flat(a);
  const auto right = flat(b);
  TensorDifference total;
  for (std::int64_t start = 0; start < left.numel(); start += kPiece) {
    const auto length = std::min(kPiece, left.numel() - start);
    const auto left_piece = left.narrow(0, start, length).contiguous();
    const auto right_piece = right.narrow(0, start, length).contiguous();
    if (!same_bytes(left_piece, right_piece)) {
      const auto found = difference_of_pieces(left_piece, right_piece, tolerance);
      total.count += found.count;
      total.largest = std::max(total.largest, found.largest);
    }
    advance(left_piece.nbytes());
  }
  return total;
}

}  // namespace lockstep::ckpt
