// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

// Ready-made communication hooks under PyTorch's names; all divide by the number of ranks.
//
//     ddp->register_comm_hook(bf16_compress_hook);

/// What happens without a hook: an all-reduce of the gradients, divided beforehand.
BucketWork allreduce_hook(GradBucket& bucket);

/// Sends half of the bytes: gradients are cast to float16 (bfloat16), divided, summed and cast back.
BucketWork fp16_compress_hook(GradBucket& bucket);
BucketWork bf16_compress_hook(GradBucket& bucket);

/// Casts to float16 (bfloat16) for another hook, and its result back.
///
///     ddp->register_comm_hook(fp16_compress_wrapper(PowerSGD({.matrix_approximation_rank = 2})));
CommHook fp16_compress_wrapper(CommHook hook);
CommHook bf16_compress_wrapper(CommHook hook);

/// An all-reduce over any group of one bucket's gradients, divided beforehand by that group's size; for hooks
/// of one's own.
BucketWork allreduce_average(at::Tensor gradients, const ProcessGroup& group);

}  // namespace lockstep
