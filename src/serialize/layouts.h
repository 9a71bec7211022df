// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include <c10/core/Layout.h>

namespace lockstep::serialize {

/// "torch.sparse_coo" and the like. Both throw CheckpointError for a layout without an equal.
at::Layout layout_named(std::string_view name);
std::string_view layout_name(at::Layout layout);

}  // namespace lockstep::serialize
