// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace lockstep::data {

// Whether Python's sorted() has `left` before `right`, names of files as os.listdir() gives them: by code
// points, where a byte that is not UTF-8 counts as U+DC00 and its value (surrogateescape).
bool before_in_python(std::string_view left, std::string_view right);

}  // namespace lockstep::data
