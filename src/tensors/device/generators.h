// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lockstep::device {

// A CPU generator seeded as Python's `torch.Generator().manual_seed(seed)`.
at::Generator seeded_generator(std::uint64_t seed);

// Python's `torch.empty((), dtype=torch.int64).random_(generator=generator).item()`.
std::int64_t draw_seed(const std::optional<at::Generator>& generator);

// Take the generator's mutex. set_state() throws LibTorch's error for a tensor that is no state.
at::Tensor state_of(at::Generator generator);
void set_state(at::Generator generator, const at::Tensor& state);

}  // namespace lockstep::device
