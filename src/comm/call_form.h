// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <lockstep/comm/call_record.h>

namespace lockstep::comm {

// Whether tensors may differ in shape from rank to rank.
bool is_uneven(CallKind kind);

// How a dense tensor lies in memory, in one number: 0 where it is contiguous.
std::uint64_t layout_of(const at::Tensor& tensor);

// Kind, dtype and, where they have to be equal, shape and layout of a collective in one number: another one
// on another rank means another call.
std::uint64_t form_of(CallKind kind, c10::ScalarType dtype, c10::IntArrayRef shape, std::uint64_t layout);

}  // namespace lockstep::comm
