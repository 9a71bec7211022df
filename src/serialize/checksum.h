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

/// The bytes of a storage of the CPU.
std::span<const std::byte> bytes_of(const c10::Storage& storage);

/// The CRC-32 of storages of the CPU, computed by a thread of its own, in their order, while another writes
/// them. Small ones, those of other devices, and all where no thread can be had are left to who asks.
/// `storages` must outlive this.
class Checksums {
 public:
  explicit Checksums(const std::vector<c10::Storage>& storages);
  /// Of storages[index], whose bytes on the CPU are `bytes`. Waits for the thread, which only computes.
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
