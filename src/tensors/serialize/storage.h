// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

// Storages, their bytes as files hold them, and the checksums of these.
namespace lockstep::serialize {

// A uint8 tensor of shape [bytes] that shares the storage.
at::Tensor storage_bytes(const c10::Storage& storage);
// The bytes of a CPU storage.
std::span<const std::byte> bytes_of(const c10::Storage& storage);
// Moves a CPU storage to `device`. A storage for the CPU is returned unchanged.
c10::Storage place_storage(c10::Storage storage, c10::Device device);

// Throws ArgumentError unless this process can use `map_location` for what is loaded from `name`.
void require_location(const std::string& name, c10::Device map_location);
c10::Storage meta_storage(std::uint64_t bytes);
// Reverses the bytes of every element in place, and of each part of a complex number.
void swap_byte_order(const c10::Storage& storage, c10::ScalarType dtype);

std::uint32_t crc32_of(std::span<const std::byte> bytes);

// Computes the CRC-32 of CPU storages in a thread, in their order, while the caller writes them. The caller
// computes those of small storages and other devices, and all if no thread can be started. `storages` must
// outlive the object.
class Checksums {
 public:
  explicit Checksums(const std::vector<c10::Storage>& storages);
  // The checksum of storages[index], whose bytes on the CPU are `bytes`. Waits for the thread.
  std::uint32_t of(std::size_t index, std::span<const std::byte> bytes);

 private:
  void compute(const std::stop_token& stop);

  const std::vector<c10::Storage>& storages_;
  std::atomic<std::size_t> done_ = 0;  // the values of the storages before this one are computed
  std::vector<std::uint32_t> values_;
  std::jthread thread_;
};

}  // namespace lockstep::serialize
