// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <lockstep/serialize/value.h>

// What pickles make of plain values by calling something by name. Errors are CheckpointErrors.
namespace lockstep::serialize {

/// Of a call by which PyTorch makes nothing.
[[noreturn]] void refuse_call(std::string_view callee);

/// "builtins set", "torch Size", ... of `given`; what is not known is refused.
Value make_plain(std::string_view callee, const std::vector<Value>& given);

/// Two's complement, lowest byte first, of at least one byte.
Value make_integer(std::string_view bytes);

/// The numbers of a torch.Size, a tuple or a list.
std::vector<std::int64_t> int_list(const Value& value);

}  // namespace lockstep::serialize
