// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "serialize/pickle_opcodes.h"

namespace lockstep::pickle {

/// Writes opcodes of protocol 2; knows nothing of tensors.
class Writer {
 public:
  Writer();
  void op(Opcode opcode) { out_.push_back(static_cast<char>(opcode)); }
  void none() { op(Opcode::none); }
  void boolean(bool value) { op(value ? Opcode::new_true : Opcode::new_false); }
  void integer(std::int64_t value);
  void big_integer(std::string_view bytes);
  void real(double value);
  void text(std::string_view value);
  /// torch Size -> "torch", "Size". The second time it is fetched from the memo.
  void global(std::string_view module, std::string_view name);
  /// Keeps the object on top of the stack under the number that is returned.
  std::uint32_t memoize();
  void recall(std::uint32_t number);
  std::string finish();

 private:
  template <typename Number>
  void raw(Number number);

  std::string out_;
  std::uint32_t memo_count_ = 0;
  std::unordered_map<std::string, std::uint32_t> globals_;
};

}  // namespace lockstep::pickle
