// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include <lockstep/base/error.h>

namespace lockstep::testing {

/// What the error of that type says that `action` throws; "" when it throws none.
template <class Expected = Error>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep::testing
