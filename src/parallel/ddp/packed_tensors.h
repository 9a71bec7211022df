// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::ddp {

// Tensors of any shapes and types in two flat ones. A kernel may round by the strides of its inputs and by the place
// of their memory within a cache line, so that both are kept.
struct PackedTensors {
  std::vector<std::int64_t> layout;  // of each tensor
  at::Tensor bytes;                  // uint8, on the CPU
};

// Copies the tensors, of which some may be undefined. Throws ArgumentError, which names `what`, for tensors without
// strides.
PackedTensors pack(const std::vector<at::Tensor>& tensors, const char* what);
// Tensors on the CPU that lie in `packed.bytes`.
std::vector<at::Tensor> unpack(const PackedTensors& packed);

// Sends `sent` to rank `dst`, and returns what rank `src` sends here, if there are such.
std::optional<PackedTensors> exchange(const ProcessGroup& group, const std::optional<PackedTensors>& sent,
                                      int dst, std::optional<int> src, std::source_location where);

}  // namespace lockstep::ddp
