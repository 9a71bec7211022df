// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/base/error.h>

#include <system_error>

namespace lockstep {

std::string errno_text(int code) { return std::generic_category().message(code); }

}  // namespace lockstep
