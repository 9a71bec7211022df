// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/kernels.h"

namespace lockstep::shm {

ReduceKernel kernels_baseline(Element element, Reduction reduction);
#ifdef LOCKSTEP_X86_KERNELS
ReduceKernel kernels_avx2(Element element, Reduction reduction);
ReduceKernel kernels_avx512(Element element, Reduction reduction);
#endif

InstructionSet best_instruction_set() {
#ifdef LOCKSTEP_X86_KERNELS
  // These query both the CPU and the system.
  static const InstructionSet best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
      return InstructionSet::avx512;
    }
    return __builtin_cpu_supports("avx2") != 0 ? InstructionSet::avx2 : InstructionSet::baseline;
  }();
  return best;
#else
  return InstructionSet::baseline;
#endif
}

ReduceKernel reduce_kernel(Element element, Reduction reduction, InstructionSet set) {
#ifdef LOCKSTEP_X86_KERNELS
  if (set == InstructionSet::avx512) return kernels_avx512(element, reduction);
  if (set == InstructionSet::avx2) return kernels_avx2(element, reduction);
#endif
  return set == InstructionSet::baseline ? kernels_baseline(element, reduction) : nullptr;
}

ReduceKernel reduce_kernel(Element element, Reduction reduction) {
  return reduce_kernel(element, reduction, best_instruction_set());
}

}  // namespace lockstep::shm
