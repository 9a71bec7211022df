// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <lockstep/base/error.h>

// Parses and writes pickles. Calls nothing: names are checked against a list of allowed names. Independent of
// tensors.
namespace lockstep::pickle {

// The opcodes of pickle protocols 2 to 5 that occur in data.
enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  none = 'N',
  bin_persistent_id = 'Q',
  reduce = 'R',
  bin_string = 'T',
  short_bin_string = 'U',
  bin_unicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  empty_dict = '}',
  appends = 'e',
  bin_get = 'h',
  long_bin_get = 'j',
  empty_list = ']',
  bin_put = 'q',
  long_bin_put = 'r',
  set_item = 's',
  tuple = 't',
  empty_tuple = ')',
  set_items = 'u',
  bin_float = 'G',
  bin_bytes = 'B',
  short_bin_bytes = 'C',
  proto = 0x80,
  new_object = 0x81,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  new_true = 0x88,
  new_false = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_bin_unicode = 0x8c,
  bin_unicode8 = 0x8d,
  bin_bytes8 = 0x8e,
  empty_set = 0x8f,
  add_items = 0x90,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  byte_array8 = 0x96,
};

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

// Whether a pickle may contain the name.
using AllowsName = bool (*)(std::string_view module, std::string_view name);

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
Pickle read_pickle(std::span<const char> bytes, AllowsName allowed);

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
  void recall(std::uint32_t number) { op_with(Opcode::bin_get, Opcode::long_bin_get, number); }
  std::string finish();

 private:
  // Writes the short opcode if the number fits in a byte.
  void op_with(Opcode short_form, Opcode long_form, std::uint32_t number);
  template <typename Number>
  void raw(Number number);

  std::string out_;
  std::uint32_t memo_count_ = 0;
  std::unordered_map<std::string, std::uint32_t> globals_;
};

}  // namespace lockstep::pickle
