// SPDX-License-Identifier: BSD-3-Clause
#include "device/cuda_identity.h"

#ifdef LOCKSTEP_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>
#endif

namespace lockstep {

#ifdef LOCKSTEP_HAS_CUDA
std::string cuda_identity(const c10::Device& device) {
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  std::string uuid;
  for (const auto byte : properties->uuid.bytes)
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return fmt::format("{} with UUID {}", properties->name, uuid);
}
#else
std::string cuda_identity(const c10::Device&) { return ""; }
#endif

}  // namespace lockstep
