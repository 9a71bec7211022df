// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <c10/core/Device.h>

namespace lockstep {

/// The number of devices of a kind that this process may use: what CUDA_VISIBLE_DEVICES leaves, 0 where
/// LibTorch has none of that kind, 1 for the CPU. Never throws. PyTorch: `torch.cuda.device_count`.
int device_count(c10::DeviceType type);

/// Makes `device` the calling thread's current one; does nothing for the CPU. Throws ArgumentError when there
/// is no such device. PyTorch: `torch.cuda.set_device`.
void set_device(const c10::Device& device);

/// Blocks until all work that was queued on `device` is done; does nothing on the CPU. Safe from any thread.
/// PyTorch: `torch.cuda.synchronize`.
void synchronize(const c10::Device& device);

/// What tells a device from all others, on other hosts too, in words for people: "NVIDIA H200 with UUID
/// 1f0c...". "" for the CPU, and where this build cannot tell. Throws as set_device().
std::string device_identity(const c10::Device& device);

}  // namespace lockstep
