// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep {

/// Number of devices of `type` that this process can use. CPU: 1. CUDA: the number of GPUs that
/// CUDA_VISIBLE_DEVICES does not hide. 0 if LibTorch does not support the type. Never throws. PyTorch:
/// `torch.cuda.device_count`.
int device_count(c10::DeviceType type);

/// Makes `device` the calling thread's current device. Does nothing for the CPU. Throws ArgumentError when
/// the device does not exist. PyTorch: `torch.cuda.set_device`.
void set_device(const c10::Device& device);

/// Blocks until all work queued on `device` is complete. Does nothing for the CPU. Thread-safe. Throws
/// ArgumentError when the device does not exist. PyTorch: `torch.cuda.synchronize`.
void synchronize(const c10::Device& device);

/// While it lives, functions of this thread that create tensors and are given no device create them on
/// `device`, but torch::tensor() of a list. With at::kMeta, a module of any size is constructed without
/// memory. PyTorch: `with torch.device("meta")`.
///
///     std::optional<lockstep::DeviceContext> meta(at::kMeta);
///     models::GPT2 net(options);
///     meta.reset();
class DeviceContext {
 public:
  explicit DeviceContext(c10::Device device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard key_;
  std::optional<c10::Device> outer_;
};

/// Model and UUID of a GPU, unique across hosts: "NVIDIA H200 with UUID 1f0c...". Empty for the CPU and in
/// builds without CUDA. Throws ArgumentError when the device does not exist.
std::string device_identity(const c10::Device& device);

/// Makes the process keep freed CPU memory instead of returning it to the kernel, which would have to clear
/// every page again in the next step. Call it from one thread, before other threads allocate tensors.
///
/// - Tensors of 16 MiB and more are cut from cached blocks in huge pages. At most 2 GiB of idle blocks stay
///   cached, and at most an eighth of the memory available at the first call.
/// - Smaller blocks come from glibc's heap, which keeps up to 1 GiB.
/// - Idle blocks go back to the kernel before an allocation fails, also one of `new`: with a std::new_handler
///   that calls the one before it.
///
/// Does nothing when one of the variables MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_ or
/// MALLOC_TOP_PAD_ is set, or LD_PRELOAD names jemalloc, tcmalloc or mimalloc. With another C library, the
/// heap stays unchanged. With another allocator (c10::SetCPUAllocator) or AddressSanitizer, tensors stay
/// unchanged. Cached blocks have no NUMA affinity: bind each process to one NUMA node.
void enable_caching_cpu_allocator();

/// Returns idle CPU memory that this process keeps for later tensors to the kernel; the next step has to
/// fetch it again. Returns whether there may have been any. Thread-safe. PyTorch: `torch.cuda.empty_cache`,
/// of the GPU's memory.
bool empty_cpu_cache() noexcept;

}  // namespace lockstep
