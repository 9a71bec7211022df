// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/checksum.h"

#include <algorithm>
#include <system_error>

#include <zlib.h>

#include "serialize/storage.h"

namespace lockstep::serialize {
namespace {

// Enough for a thread to be worth its start.
constexpr std::size_t kLeastForThread = 1 << 20;
// So soon the thread notices that nobody waits any more.
constexpr std::size_t kChecksumPiece = 16 << 20;

bool is_for_thread(const c10::Storage& storage) {
  return storage.device().is_cpu() && storage.nbytes() >= kLeastForThread;
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Checksums::Checksums(const std::vector<c10::Storage>& storages)
    : storages_(storages), values_(storages.size()) {
  if (std::ranges::none_of(storages, is_for_thread)) return;
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { compute(stop); });
  } catch (const std::system_error&) {
    // There are no more threads to be had: of() computes.
  }
}

void Checksums::compute(const std::stop_token& stop) {
  for (std::size_t i = 0; i < storages_.size() && !stop.stop_requested(); ++i) {
    if (!is_for_thread(storages_[i])) continue;
    uLong crc = ::crc32_z(0, nullptr, 0);
    for (auto left = bytes_of(storages_[i]); !left.empty() && !stop.stop_requested();) {
      const auto piece = left.first(std::min(left.size(), kChecksumPiece));
      crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
      left = left.subspan(piece.size());
    }
    const std::lock_guard lock(mutex_);
    values_[i] = static_cast<std::uint32_t>(crc);
    done_ = i + 1;
    changed_.notify_one();
  }
}

std::uint32_t Checksums::of(std::size_t index, std::span<const std::byte> bytes) {
  if (!thread_.joinable() || !is_for_thread(storages_[index])) return crc32_of(bytes);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ > index; });
  return values_[index];
}

}  // namespace lockstep::serialize
