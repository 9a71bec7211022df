// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include <lockstep/serialize/value.h>

namespace lockstep::serialize {

/// The plain number that a numpy scalar holds: `type` as in "f8", `order` as in "<", `data` its bytes. Throws
/// CheckpointError for other types.
Value numpy_scalar(std::string_view type, std::string_view order, std::string_view data);

}  // namespace lockstep::serialize
