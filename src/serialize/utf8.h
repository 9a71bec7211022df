// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace lockstep::serialize {

/// Whether Python can decode it; single surrogates are let through, as pickles have them.
bool is_utf8(std::string_view text);

}  // namespace lockstep::serialize
