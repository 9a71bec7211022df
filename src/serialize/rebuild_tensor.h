// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Storage.h>

#include <lockstep/serialize/value.h>

// Python's torch._utils._rebuild_* functions, with all numbers checked first. They throw CheckpointError, or
// c10::Error where LibTorch checks.
namespace lockstep::serialize {

// A view of a storage; `offset`, `sizes` and `strides` count elements.
at::Tensor rebuild_strided(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                           const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);
at::Tensor rebuild_sparse(at::Layout layout, const std::vector<Value>& parts);
at::Tensor rebuild_meta(at::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                        const std::vector<std::int64_t>& strides, bool requires_grad);
void set_view_bits(at::Tensor& tensor, bool conjugate, bool negative);
// Throws when a tensor of this dtype cannot require a gradient.
void check_requires_grad(const at::Tensor& tensor, bool requires_grad);
void set_requires_grad(at::Tensor& tensor, bool requires_grad);

}  // namespace lockstep::serialize
