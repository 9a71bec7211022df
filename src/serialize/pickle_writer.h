// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "serialize/pickle_opcodes.h"

namespace lockstep::pickle {

// Whether Python can decode it; single surrogates are allowed, as pickles contain them.
bool is_utf8(std::string_view text);

// Writes opcodes of protocol 2. Independent of tensors.
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
  // For example "torch", "Size". A repeated name is fetched from the memo.
  void global(std::string_view module, std::string_view name);
  // A tuple of what `contents` writes.
  template <typename Contents>
  void tuple(Contents contents) {
    op(Opcode::mark);
    contents();
    op(Opcode::tuple);
  }
  // A call with the arguments that `arguments` writes.
  template <typename Arguments>
  void call(std::string_view module, std::string_view name, Arguments arguments) {
    global(module, name);
    tuple(arguments);
    op(Opcode::reduce);
  }
  template <typename Integers>
  void integers(const Integers& numbers) {
    tuple([&] {
      for (const auto number : numbers) integer(number);
    });
  }
  // Stores the object on top of the stack in the memo and returns its number.
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
