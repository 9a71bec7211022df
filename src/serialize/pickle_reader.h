// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>

// Parses pickles. Calls nothing: names are checked against a list of allowed names. Independent of tensors.
namespace lockstep::pickle {

using Ref = std::uint32_t;
constexpr Ref kNoRef = static_cast<Ref>(-1);

enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  big_integer,  // text: two's complement, lowest byte first
  real,
  text,
  bytes,
  byte_array,
  list,
  tuple,
  set,
  dict,        // items: key, value, key, value, ...
  global,      // text: "module name"
  call,        // callee(*args), then items of a dict or list that it may have become
  persistent,  // args: the persistent id
};

struct Node {
  Kind kind = Kind::none;
  bool flag = false;
  Ref callee = kNoRef;
  Ref args = kNoRef;
  Ref state = kNoRef;  // what BUILD gave it
  std::int64_t integer = 0;
  double real = 0;
  std::string_view text{};  // lies in the pickle or in Pickle::names
  std::vector<Ref> items{};
};

// Allowed names, sorted, each as "module name".
using AllowedNames = std::span<const std::string_view>;

struct Pickle {
  std::vector<Node> nodes{};
  std::deque<std::string> names{};
  Ref root = kNoRef;
  std::size_t size = 0;  // bytes up to and including STOP

  const Node& operator[](Ref ref) const { return nodes[ref]; }
};

// The pickle does not end within the given bytes.
class CutShort : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Reads the pickle at the beginning of `bytes`, which must outlive the result. Time and memory are
// proportional to its size. Throws CutShort, and CheckpointError for a malformed pickle or a name that is not
// allowed.
Pickle read_pickle(std::span<const char> bytes, AllowedNames allowed);

}  // namespace lockstep::pickle
