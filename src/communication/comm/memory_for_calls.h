// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::comm {

// Uninitialized memory from which the backend makes its calls without a copy, if it has such memory.
inline at::Tensor memory_for_calls(const ProcessGroup& group, std::int64_t numel,
                                   const at::TensorOptions& options) {
  const auto backend = group.backend();
  const auto device = options.device();
  if (backend->supportsTensorAlloc(device.has_index() ? device.index() : 0)) {
    return backend->allocateTensor(numel, options);
  }
  return at::empty({numel}, options);
}

}  // namespace lockstep::comm
