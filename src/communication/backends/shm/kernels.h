// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/shm/element.h"

namespace lockstep::shm {

// Each of the `outs` rows out[j][0 .. count) becomes the reduction of in[0][i], in[1][i], ... in[ins-1][i],
// taken in that order. An out row may be one of the in rows (exactly the same pointer); otherwise rows do not
// overlap. Rows are aligned to their elements.
//
// f16 and bf16 are reduced in fp32 and rounded once, to nearest even. Integer sums and products wrap. A NaN
// on any side of min and max gives NaN. For booleans, sum, max and bor are "or"; product, min and band are
// "and". `average` divides the sum by `ins`, before it is rounded.
using ReduceKernel = void (*)(void* const* out, int outs, const void* const* in, int ins, std::size_t count);

// Every set gives the same bits.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

// The best set that this build, this CPU and this system support.
InstructionSet best_instruction_set();

// nullptr for invalid reductions: bits of floats, averages of integers. The overload without a set uses the
// best.
ReduceKernel reduce_kernel(Element element, Reduction reduction);
ReduceKernel reduce_kernel(Element element, Reduction reduction, InstructionSet set);

}  // namespace lockstep::shm
