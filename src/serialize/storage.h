// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

// Bytes of storages, as files hold them.
namespace lockstep::serialize {

// A uint8 tensor of shape [bytes] that shares the storage.
at::Tensor storage_bytes(const c10::Storage& storage);
// The bytes of a CPU storage.
std::span<const std::byte> bytes_of(const c10::Storage& storage);
// Moves a CPU storage to `device`. A storage for the CPU is returned unchanged.
c10::Storage place_storage(c10::Storage storage, c10::Device device);
c10::Storage meta_storage(std::uint64_t bytes);
// Reverses the bytes of every element in place, and of each part of a complex number.
void swap_byte_order(const c10::Storage& storage, c10::ScalarType dtype);

}  // namespace lockstep::serialize
