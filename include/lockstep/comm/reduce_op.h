// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

/// How the tensors of several ranks become one. PyTorch: `torch.distributed.ReduceOp`.
enum class ReduceOp : std::uint8_t {
  SUM,
  AVG,  ///< the sum divided by the number of ranks; floating point and complex only
  PRODUCT,
  MIN,   ///< no complex
  MAX,   ///< no complex
  BAND,  ///< bitwise and; integers and bool only
  BOR,   ///< bitwise or; integers and bool only
  BXOR,  ///< bitwise exclusive or; integers and bool only
};

/// "SUM", "AVG", ...
std::string_view name_of(ReduceOp op);

}  // namespace lockstep
