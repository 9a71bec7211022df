// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

#include "serialize/byte_source.h"
#include "serialize/storage.h"

namespace lockstep::data {

using ByteSpan = std::span<const std::uint8_t>;

// The bytes of a contiguous uint8 tensor.
inline ByteSpan as_bytes(const at::Tensor& bytes) {
  return {bytes.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(bytes.numel())};
}
inline std::string_view as_text(const at::Tensor& bytes) {
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()),
          static_cast<std::size_t>(bytes.numel())};
}

// Runs `action`. The readers that this layer shares with checkpoints throw CheckpointErrors, which become
// DataErrors with the same text.
template <typename Action>
auto as_data_errors(Action action) {
  try {
    return action();
  } catch (const CheckpointError& error) {
    throw DataError(error.what());
  }
}

// The pages of a file as a uint8 tensor of shape [bytes], read on first access and copied on write. Throws
// DataError naming the file.
inline at::Tensor map_file(const std::filesystem::path& file) {
  return as_data_errors([&file] {
    const auto source = serialize::open_file(file, /*mapped=*/true);
    return serialize::storage_bytes(source->storage(0, source->size()));
  });
}

}  // namespace lockstep::data
