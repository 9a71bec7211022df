// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

// The memory of strided tensors. Every call asks for it several times, so all of this is inline and reads
// fields only.
namespace lockstep::comm {

// Tensor::nbytes().
[[gnu::always_inline]] inline std::size_t byte_size(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.dtype().itemsize();
}

// A range of addresses on a device.
struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;

  bool operator==(const Extent&) const = default;
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// A dense tensor's place in its storage.
struct Placed {
  const c10::Storage& storage;  // null without one
  std::size_t offset;
  std::size_t bytes;

  // The bytes that the tensor occupies on its device, whatever its storage; none without elements or memory
  // (meta).
  [[gnu::always_inline]] Extent extent() const {
    if (bytes == 0 || !storage) return {};
    const auto start = reinterpret_cast<std::uintptr_t>(storage.data());
    if (start == 0) return {};
    return {start + offset, start + offset + bytes};
  }
  // A storage can be resized below its tensors.
  [[gnu::always_inline]] bool is_whole() const {
    return bytes == 0 || !storage || storage.nbytes() >= offset + bytes;
  }
};

// Reads each field of the tensor once.
[[gnu::always_inline]] inline Placed placed(const at::Tensor& tensor) {
  const auto width = tensor.dtype().itemsize();
  return {.storage = tensor.unsafeGetTensorImpl()->unsafe_storage(),
          .offset = static_cast<std::size_t>(tensor.storage_offset()) * width,
          .bytes = static_cast<std::size_t>(tensor.numel()) * width};
}

}  // namespace lockstep::comm
