// SPDX-License-Identifier: BSD-3-Clause
#define LOCKSTEP_KERNELS kernels_avx2
#include "backends/shm/kernels_impl.h"
