// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include <lockstep/transforms/geometry.h>

#include "transforms/geometry_ops.h"

namespace lockstep::transforms {

// Throws ArgumentError: not 0, 1, 2 or 4 numbers, a negative one, or a fill that does not go with the mode.
void check_padding(std::string_view transform, const Padding& padding, const Numbers& fill, PaddingMode mode);
Sides sides_of(const Padding& padding);

}  // namespace lockstep::transforms
