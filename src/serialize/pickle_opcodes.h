// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

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

}  // namespace lockstep::pickle
