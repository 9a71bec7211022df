// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep::ddp {

// The sum of all ranks' sparse (COO) tensors of one shape, coalesced, added in rank order. PyTorch: what Gloo
// does for all_reduce of sparse tensors.
BucketWork sum_sparse(const at::Tensor& tensor, const ProcessGroup& group, std::source_location where);

}  // namespace lockstep::ddp
