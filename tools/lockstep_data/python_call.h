// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::data_tool {

struct Value;

// A call in Python's notation. `name` is the last part of a dotted name.
struct Call {
  std::string name;
  std::vector<Value> positional{};
  std::map<std::string, Value> keywords{};
};

// None, True and False, a number, a string, a (dotted) name, a list or tuple, or a call.
struct Value {
  struct None {};
  struct Name {
    std::string text;
  };
  std::variant<None, bool, double, std::string, Name, std::vector<Value>, Call> held;
};

// Parses values separated by commas. Throws ArgumentError that shows the place of an error.
std::vector<Value> parse_python(std::string_view text);

}  // namespace lockstep::data_tool
