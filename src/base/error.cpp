// SPDX-License-Identifier: BSD-3-Clause
#include <system_error>

#include <lockstep/base/error.h>

namespace lockstep {

std::string errno_text(int code) { return std::generic_category().message(code); }

}  // namespace lockstep
