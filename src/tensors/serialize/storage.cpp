// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/storage.h"

#include <algorithm>
#include <system_error>

#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <zlib.h>

#include "base/throw_error.h"

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

at::Tensor storage_bytes(const c10::Storage& storage) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {1});
}

std::span<const std::byte> bytes_of(const c10::Storage& storage) {
  return {static_cast<const std::byte*>(storage.data()), storage.nbytes()};
}

c10::Storage place_storage(c10::Storage storage, c10::Device device) {
  if (device.is_cpu()) return storage;
  return storage_bytes(storage).to(device).storage();
}

void require_location(const std::string& name, c10::Device map_location) {
  if (map_location.is_cpu() || map_location.is_meta()) return;
  const auto type = map_location.type();
  const int count =
      c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
  if (std::max<int>(map_location.index(), 0) < count) return;
  throw_error<ArgumentError>(
      "{}: map_location is {}, but this process can use {} devices of that type; pass the device of this "
      "rank, context.device(), or at::kCPU",
      name, map_location.str(), count);
}

c10::Storage meta_storage(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(at::kMeta))
      .storage();
}

void swap_byte_order(const c10::Storage& storage, c10::ScalarType dtype) {
  auto size = c10::elementSize(dtype);
  if (c10::isComplexType(dtype)) size /= 2;
  if (size < 2) return;
  auto* bytes = static_cast<char*>(storage.mutable_data());
  for (std::size_t at = 0; at + size <= storage.nbytes(); at += size)
    std::reverse(bytes + at, bytes + at + size);
}

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
    values_[i] = static_cast<std::uint32_t>(crc);
    done_ = i + 1;
    done_.notify_one();
  }
}

std::uint32_t Checksums::of(std::size_t index, std::span<const std::byte> bytes) {
  if (!thread_.joinable() || !is_for_thread(storages_[index])) return crc32_of(bytes);
  for (auto done = done_.load(); done <= index; done = done_.load()) done_.wait(done);
  return values_[index];
}

}  // namespace lockstep::serialize
