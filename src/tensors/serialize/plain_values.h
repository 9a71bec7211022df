// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <lockstep/serialize/value.h>

// Plain values that pickles create by calls. Errors are CheckpointErrors.
namespace lockstep::serialize {

// Throws for a call that PyTorch does not make.
[[noreturn]] void refuse_call(std::string_view callee);

// The result of calling "builtins set", "torch Size", ... with `given`. Throws for an unknown callee.
Value make_plain(std::string_view callee, const std::vector<Value>& given);

// Two's complement, lowest byte first, at least one byte.
Value make_integer(std::string_view bytes);

// A numpy scalar as a plain number: `type` such as "f8", `order` such as "<", `data` its bytes. Throws for
// other types.
Value numpy_scalar(std::string_view type, std::string_view order, std::string_view data);

// The numbers of a torch.Size, a tuple or a list.
std::vector<std::int64_t> int_list(const Value& value);

// A float, an int, a bool or a tensor of one element. Throws for anything else.
double number_of(const Value& value);

}  // namespace lockstep::serialize
