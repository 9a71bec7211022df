// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

// Kernels of a dispatch key that precedes every key that LibTorch uses outside its own tests. A thread
// includes the key while it has one of the defaults; all other operators fall through at no cost.
namespace lockstep::device {

constexpr auto kModeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// What operators that this thread calls get where the call has none.
struct CallDefaults {
  std::optional<at::Generator> generator = {};  // with CPU tensors
  std::optional<c10::Device> device = {};       // operators that create tensors from nothing
};
CallDefaults& call_defaults();

// Each registers its kernels once for the process. Call them while no other thread calls such operators.
void register_generator_kernels();
void register_factory_kernels();  // and the former's; operators of threads with a generator then cost more

}  // namespace lockstep::device
