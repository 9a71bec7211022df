// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include <lockstep/device/any_pytree.h>

namespace lockstep::pipelining {

// The value of each micro-batch: the tensors of `batch` split in `dim`, and all that is not a tensor. `what`
// names the batch in errors.
std::vector<AnyPyTree> split_batch(const AnyPyTree& batch, int count, std::int64_t dim, const char* what);

// The value without history.
AnyPyTree detached(const AnyPyTree& value);

// The tensors of all micro-batches concatenated in `dim`, scalars stacked; the rest is that of the first.
AnyPyTree merge_batches(const std::vector<AnyPyTree>& batches, std::int64_t dim);

}  // namespace lockstep::pipelining
