// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <lockstep/comm/call_record.h>

namespace lockstep::comm {

// Whether tensors may differ in shape from rank to rank.
bool is_uneven(CallKind kind);

// Kind, dtype and, where it has to be equal, shape of a collective in one number: another one on another rank
// means another call.
std::uint64_t form_of(CallKind kind, c10::ScalarType dtype, c10::IntArrayRef shape);

}  // namespace lockstep::comm
