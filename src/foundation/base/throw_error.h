// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

// Throws ErrorType with a formatted message.
template <typename ErrorType, typename... Args>
[[noreturn]] void throw_error(fmt::format_string<Args...> format, Args&&... args) {
  throw ErrorType(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep
