// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::bench {

// The parts of `text` between separators; none for "".
std::vector<std::string> split(const std::string& text, char separator);

// "1K:64M" (doubling), "1K:64M:4" (times four) or a list "1K,64K,25M", also of ranges. Bytes; K, M and G are
// powers of 1024. Throws ArgumentError quoting what it cannot read.
std::vector<std::size_t> parse_sizes(const std::string& text);

}  // namespace lockstep::bench
