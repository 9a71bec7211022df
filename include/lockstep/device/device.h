// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <lockstep/device/pytree.h>

namespace lockstep {

/// A device, the index of a CUDA device (`1` is cuda:1), or PyTorch's name of a device, such as "cuda:1".
/// PyTorch: an element of `device_ids`, or `torch.device`.
class DeviceId {
 public:
  DeviceId(c10::Device device) : device_(device) {}
  DeviceId(c10::DeviceType type) : device_(type) {}
  /// As in `{torch::kCUDA, 1}`.
  DeviceId(c10::DeviceType type, c10::DeviceIndex index) : device_(type, index) {}
  /// Throws ArgumentError unless `cuda_index` is between 0 and 127.
  template <std::integral Index>
    requires(!std::same_as<Index, bool>)
  DeviceId(Index cuda_index, std::source_location where = std::source_location::current())
      : DeviceId(cuda_device(static_cast<std::int64_t>(cuda_index), where)) {}
  template <typename Other>
    requires std::same_as<Other, bool> || std::floating_point<Other>
  DeviceId(Other) = delete;  // a device is an integer, a name such as "cuda", or a c10::Device
  /// Throws ArgumentError for a name that no device has.
  DeviceId(const std::string& name, std::source_location where = std::source_location::current());
  DeviceId(const char* name, std::source_location where = std::source_location::current())
      : DeviceId(std::string(name), where) {}

  operator c10::Device() const { return device_; }

 private:
  static c10::Device cuda_device(std::int64_t index, std::source_location where);

  c10::Device device_;
};

/// Number of devices of `type` that this process can use. CPU: 1. CUDA: the number of GPUs that
/// CUDA_VISIBLE_DEVICES does not hide. 0 if LibTorch does not support the type. Never throws. PyTorch:
/// `torch.cuda.device_count`.
int device_count(c10::DeviceType type);

/// Throws ArgumentError, which begins with `caller` and says what to use instead, if this process cannot use
/// `device`.
void require_device(std::string_view caller, const c10::Device& device);

/// Makes `device` the calling thread's current device. Does nothing for the CPU. Throws ArgumentError when
/// the device does not exist. PyTorch: `torch.cuda.set_device`.
void set_device(const c10::Device& device);

/// Blocks until all work queued on `device` is complete. Does nothing for the CPU. Thread-safe. Throws
/// ArgumentError when the device does not exist. PyTorch: `torch.cuda.synchronize`.
void synchronize(const c10::Device& device);

/// While it lives, functions of this thread that create tensors and are given no device create them on
/// `device`, but torch::tensor() of a list. With "meta", a module of any size is constructed without
/// memory. PyTorch: `with torch.device("meta")`.
///
///     std::optional<lockstep::DeviceContext> meta("meta");
///     Net net;
///     meta.reset();
class DeviceContext {
 public:
  explicit DeviceContext(DeviceId device);
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

/// Whether LibTorch can pin memory, that is, whether it finds an accelerator. PyTorch:
/// `torch.accelerator.is_available`.
bool can_pin_memory();

/// Copies `tensor` to page-locked memory, from which devices copy asynchronously. Returns `tensor` itself
/// when it is pinned or on a device. LibTorch reuses the memory once it is freed and no copy reads it.
/// Thread-safe. PyTorch: `Tensor.pin_memory`.
at::Tensor pin_memory(const at::Tensor& tensor);

/// Records an event on the calling thread's current stream of `device`. PyTorch:
/// `torch.cuda.Stream.record_event`.
c10::Event record_event(const c10::Device& device);

/// Records an event after the work that produces `value`; nullopt when its tensors are on the CPU. Another
/// thread or stream calls wait_and_record_stream() with the event before it uses `value`.
template <PyTree T>
std::optional<c10::Event> record_ready_event(T& value) {
  std::optional<c10::Device> device;
  visit_tensors(value, [&](at::Tensor& tensor) {
    if (!tensor.is_cpu()) device = tensor.device();
  });
  if (!device) return std::nullopt;
  return record_event(*device);
}

/// Makes the current stream of `tensor`'s device wait for `event`, and records the stream's use of the
/// tensor: after the tensor is freed, its memory is reused only when the work queued by then is complete.
/// Does nothing for tensors on the CPU. PyTorch: `Stream.wait_event` and `Tensor.record_stream`.
void wait_and_record_stream(const at::Tensor& tensor, const c10::Event& event);

/// wait_and_record_stream() for each tensor in `value`.
template <PyTree T>
void wait_and_record_stream(T& value, const c10::Event& event) {
  visit_tensors(value, [&](at::Tensor& tensor) { wait_and_record_stream(std::as_const(tensor), event); });
}

/// A side stream that copies batches to a device while the previous step runs. Works for every device type
/// for which LibTorch has streams and events.
class TransferStream {
 public:
  /// `device`: without an index, the current device of its type. Throws ArgumentError when the device does
  /// not exist or has no streams.
  explicit TransferStream(const c10::Device& device);

  /// The device, with its index.
  c10::Device device() const { return stream_.device(); }
  /// The stream on which copies run.
  const c10::Stream& stream() const { return stream_; }

  /// Replaces the tensors in `value` by copies on the device. Copies from pinned memory are asynchronous.
  /// Pass the returned event to wait_and_record_stream() before the tensors are used. Tensors already on the
  /// device are not copied. `ready`: the event that record_ready_event() returned for `value`.
  template <PyTree T>
  c10::Event send(T& value, const std::optional<c10::Event>& ready = std::nullopt) const {
    const c10::StreamGuard guard(stream_);
    if (ready) wait_and_record_stream(value, *ready);
    visit_tensors(value, [&](at::Tensor& tensor) { tensor = copy_to_device(tensor); });
    return record_event(device());
  }

 private:
  at::Tensor copy_to_device(const at::Tensor& tensor) const;

  c10::Stream stream_;
};

}  // namespace lockstep
