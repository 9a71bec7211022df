// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include <lockstep/serialize/value.h>

namespace lockstep::testing {

/// A value as text, as foreign_values.py describes it in Python.
std::string described(const Value& value);

/// The bytes in hexadecimal digits.
std::string hexed(std::string_view bytes);

}  // namespace lockstep::testing
