// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/rebuild_tensor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/ranges.h>

#include "serialize/errors.h"
#include "serialize/plain_values.h"

namespace lockstep::serialize {
namespace {

constexpr std::size_t kMostDimensions = 1000;

// One past the last element that is reached; throws when a number is negative or does not fit.
std::int64_t reach(std::int64_t offset, const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides) {
  const auto impossible = [&] {
    return CheckpointError(fmt::format(
        "the checkpoint has a tensor of impossible shape [{}], strides [{}], offset {}",
        fmt::join(sizes.begin(), sizes.begin() + std::min<std::ptrdiff_t>(std::ssize(sizes), 20), ", "),
        fmt::join(strides.begin(), strides.begin() + std::min<std::ptrdiff_t>(std::ssize(strides), 20), ", "),
        offset));
  };
  if (offset < 0 || sizes.size() != strides.size() || sizes.size() > kMostDimensions) throw impossible();
  std::int64_t count = 1;
  std::int64_t last = offset;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) throw impossible();
    if (sizes[i] == 0) empty = true;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(sizes[i], 1), &count) ||
        __builtin_mul_overflow(std::max<std::int64_t>(sizes[i] - 1, 0), strides[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      throw impossible();
    }
  }
  if (last == std::numeric_limits<std::int64_t>::max()) throw impossible();
  return empty ? 0 : last + 1;
}

// Validating a sparse tensor reads all of its parts, so they must not be larger than the file.
const at::Tensor& part(const std::vector<Value>& parts, std::size_t i) {
  const auto& tensor = parts[i].as_tensor();
  if (tensor.is_meta()) return tensor;
  const auto there = tensor.has_storage() ? tensor.storage().nbytes() / tensor.element_size() : 0;
  if (std::cmp_greater(tensor.numel(), there))
    throw CheckpointError("the checkpoint has a sparse tensor whose parts are larger than their storage");
  return tensor;
}

}  // namespace

at::Tensor rebuild_strided(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                           const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  const auto there = static_cast<std::int64_t>(storage.nbytes() / c10::elementSize(dtype));
  const auto wanted = reach(offset, sizes, strides);
  if (wanted > there) {
    throw_error("the checkpoint has a tensor of shape [{}] that reaches to element {} of a storage of {}",
                fmt::join(sizes, ", "), wanted, there);
  }
  const auto options = at::TensorOptions().dtype(dtype).device(storage.device());
  return at::empty({0}, options).set_(storage, offset, sizes, strides);
}

at::Tensor rebuild_sparse(at::Layout layout, const std::vector<Value>& parts) {
  if (layout == at::kSparse) {
    if (parts.size() < 3 || parts.size() > 4)
      throw CheckpointError("the checkpoint has a damaged sparse tensor");
    const auto sizes = int_list(parts[2]);
    std::optional<bool> coalesced;
    if (parts.size() == 4 && !parts[3].is<None>()) coalesced = parts[3].as_bool();
    at::_validate_sparse_coo_tensor_args(part(parts, 0), part(parts, 1), sizes, coalesced, false);
    return at::_sparse_coo_tensor_unsafe(part(parts, 0), part(parts, 1), sizes,
                                         part(parts, 1).options().layout(at::kSparse), coalesced);
  }
  if (layout == at::kStrided || layout == at::kMkldnn || parts.size() != 4)
    throw CheckpointError("the checkpoint has a damaged sparse tensor");
  const auto sizes = int_list(parts[3]);
  at::_validate_sparse_compressed_tensor_args(part(parts, 0), part(parts, 1), part(parts, 2), sizes, layout,
                                              false);
  return at::_sparse_compressed_tensor_unsafe(part(parts, 0), part(parts, 1), part(parts, 2), sizes,
                                              part(parts, 2).options().layout(layout));
}

at::Tensor rebuild_meta(at::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                        const std::vector<std::int64_t>& strides, bool requires_grad) {
  reach(0, sizes, strides);
  auto tensor = at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(at::kMeta));
  set_requires_grad(tensor, requires_grad);
  return tensor;
}

void set_view_bits(at::Tensor& tensor, bool conjugate, bool negative) {
  if ((conjugate && !tensor.is_complex()) || (negative && c10::isIntegralType(tensor.scalar_type(), true)))
    throw CheckpointError("the checkpoint has a tensor whose dtype cannot be conjugated or negated");
  if (conjugate) tensor._set_conj(true);
  if (negative) tensor._set_neg(true);
}

void check_requires_grad(const at::Tensor& tensor, bool requires_grad) {
  if (requires_grad && !tensor.is_floating_point() && !tensor.is_complex())
    throw CheckpointError("the checkpoint has a tensor of integers that requires a gradient");
}

void set_requires_grad(at::Tensor& tensor, bool requires_grad) {
  check_requires_grad(tensor, requires_grad);
  if (requires_grad) tensor.set_requires_grad(true);
}

}  // namespace lockstep::serialize
