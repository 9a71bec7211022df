// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::device {

// A CPU generator seeded as Python's `torch.Generator().manual_seed(seed)`.
at::Generator seeded_generator(std::uint64_t seed);

// Python's `torch.empty((), dtype=torch.int64).random_(generator=generator).item()`.
std::int64_t draw_seed(const std::optional<at::Generator>& generator);

// Take the generator's mutex. set_state() throws LibTorch's error for a tensor that is no state.
at::Tensor state_of(at::Generator generator);
void set_state(at::Generator generator, const at::Tensor& state);

// While it exists, operators that this thread calls on CPU tensors without a generator use this generator.
//
// LibTorch's default generator is shared by the process.
class ThreadGenerator {
 public:
  explicit ThreadGenerator(at::Generator generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  // Registers the kernels, once for the process. Call it before the threads start, while no thread calls
  // random operators.
  static void register_kernels();

  // The calling thread's generator, if it has one.
  static std::optional<at::Generator> current();

 private:
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace lockstep::device
