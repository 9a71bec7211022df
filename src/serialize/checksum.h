// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include <c10/core/Storage.h>

namespace lockstep::serialize {

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
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t done_ = 0;
  std::vector<std::uint32_t> values_;
  std::jthread thread_;
};

}  // namespace lockstep::serialize
