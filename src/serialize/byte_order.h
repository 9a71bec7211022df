// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

namespace lockstep::serialize {

/// Turns the bytes of every element round, in place; the parts of a complex number each for itself.
void swap_byte_order(const c10::Storage& storage, c10::ScalarType dtype);

}  // namespace lockstep::serialize
