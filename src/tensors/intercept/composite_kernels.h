// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace lockstep::intercept {

enum class Devices : std::uint8_t { all, accelerators };

// Gives the composite operator `op` of aten a kernel of ours, for layers that give their operators nothing by
// which a guard could find them. LibTorch implements a composite operator with others and has no kernel for it
// under these keys, which cover training and inference mode. The kernel calls LibTorch's own function,
// at::native::<op>, for tensors that are none of its business.
//
// Call it before main(): registration is not safe while other threads run operators. Keep the result in a
// reference with [[gnu::used]], without which the compiler drops it and the leak sanitizer finds nobody who keeps
// the result. It is not destroyed, because operators may run while statics are.
template <typename Kernel>
const std::vector<torch::Library>& replace_composite(const char* op, Kernel* kernel,
                                                     Devices devices = Devices::all) {
  using enum c10::DispatchKey;
  constexpr std::array kKeys{AutogradCPU, CPU, AutogradCUDA,        CUDA,       AutogradXPU, XPU,
                             AutogradMPS, MPS, AutogradPrivateUse1, PrivateUse1};
  constexpr std::size_t kOfCpu = 2;
  auto& libraries = *new std::vector<torch::Library>;
  for (std::size_t i = devices == Devices::all ? 0 : kOfCpu; i < kKeys.size(); ++i)
    libraries.emplace_back(torch::Library::IMPL, "aten", kKeys[i], __FILE__, __LINE__).impl(op, kernel);
  return libraries;
}

}  // namespace lockstep::intercept
