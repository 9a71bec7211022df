// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace lockstep::observe {

// The text of page.html, which the build makes a string.
extern const std::string_view kPageTemplate;

}  // namespace lockstep::observe
