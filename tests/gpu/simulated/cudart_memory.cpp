// SPDX-License-Identifier: BSD-3-Clause
// CUDA's runtime interface: memory and copies.
#include <cstring>
#include <cuda_runtime_api.h>

#include "capture.h"
#include "devices.h"
#include "memory.h"
#include "result.h"

using namespace lockstep::simulated;

namespace {

// All of a device's work has ended before memory goes.
void wait_for_all_devices() {
  for (std::size_t i = 0; i < devices().size(); ++i) wait_for_device(static_cast<int>(i));
}

cudaError_t submit_copy(Stream& stream, void* to, const void* from, std::size_t count) {
  return Captures::instance().submit(
      stream, [to, from, count] { std::memcpy(Memory::bytes_of(to), Memory::bytes_of(from), count); });
}

cudaError_t copy(Stream& stream, void* to, const void* from, std::size_t count) {
  if (count == 0) return cudaSuccess;
  const bool capturing = Captures::instance().is_capturing(stream);
  const bool from_pageable = !Memory::instance().find(from);
  const bool to_pageable = !Memory::instance().find(to);
  if (capturing || (!from_pageable && !to_pageable)) return submit_copy(stream, to, from, count);
  if (to_pageable) {
    const auto result = submit_copy(stream, to, from, count);
    stream.mark()->wait();
    return result;
  }
  // Pageable memory has been read when the call returns.
  const auto* begin = static_cast<const char*>(from);
  return Captures::instance().submit(stream, [to, staged = std::vector<char>(begin, begin + count)] {
    std::memcpy(Memory::bytes_of(to), staged.data(), staged.size());
  });
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t size) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  *address = size == 0 ? nullptr : Memory::instance().allocate(Place::device, current_device(), size);
  return report(size > 0 && *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* address) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  if (address == nullptr) return report(cudaSuccess);
  wait_for_all_devices();
  return report(Memory::instance().free(Place::device, address) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** address, std::size_t size, unsigned) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  *address = Memory::instance().allocate(Place::host, current_device(), size);
  return report(*address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* address) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  wait_for_all_devices();
  return report(Memory::instance().free(Place::host, address) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* address, std::size_t size, unsigned) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  Memory::instance().add_host(address, size);
  return report(cudaSuccess);
}

cudaError_t cudaHostUnregister(void* address) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  wait_for_all_devices();
  return report(Memory::instance().remove_host(address) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  std::memset(attributes, 0, sizeof *attributes);
  const auto block = Memory::instance().find(address);
  attributes->type = !block                          ? cudaMemoryTypeUnregistered
                     : block->place == Place::device ? cudaMemoryTypeDevice
                                                     : cudaMemoryTypeHost;
  attributes->device = block ? block->device : -2;
  if (block) attributes->devicePointer = const_cast<void*>(address);
  if (!block || block->place == Place::host) attributes->hostPointer = const_cast<void*>(address);
  return report(cudaSuccess);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = Memory::kPerDevice;
  *free = *total - Memory::instance().used(current_device());
  return report(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t count, cudaMemcpyKind,
                            cudaStream_t stream) {
  return report(copy(stream_of(stream), to, from, count));
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t count, cudaMemcpyKind) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  auto& stream = stream_of(nullptr);
  const auto result = copy(stream, to, from, count);
  stream.mark()->wait();
  return report(result);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t count,
                                cudaStream_t stream) {
  return report(submit_copy(stream_of(stream), to, from, count));
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return report(Captures::instance().submit(stream_of(stream), [=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(Memory::bytes_of(to)) + row * to_pitch,
                  static_cast<const char*>(Memory::bytes_of(from)) + row * from_pitch, width);
    }
  }));
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t count, cudaStream_t stream) {
  return report(Captures::instance().submit(stream_of(stream),
                                            [=] { std::memset(Memory::bytes_of(address), value, count); }));
}

cudaError_t cudaMemset(void* address, int value, std::size_t count) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  return cudaMemsetAsync(address, value, count, nullptr);
}
}
