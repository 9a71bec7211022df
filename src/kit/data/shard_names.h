// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// The names that a pattern with {a,b} and {000..146} stands for, as Python's braceexpand gives them for
// webdataset. Throws ArgumentError for braces without a partner and for more than a million names.
std::vector<std::string> expand_braces(std::string_view pattern);

}  // namespace lockstep::data
