// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

using ByteSpan = std::span<const std::uint8_t>;

/// The bytes of a contiguous uint8 tensor.
ByteSpan as_bytes(const at::Tensor& bytes);

/// The contents of a file as a uint8 tensor of shape [bytes], decompressed when it is gzip data.
/// Throws DataError naming the file.
at::Tensor read_file_bytes(const std::filesystem::path& file);

bool is_gzip(ByteSpan bytes);

/// What gzip data holds; `name` is for messages. Throws DataError when it is cut short or damaged.
at::Tensor inflate_gzip(ByteSpan compressed, const std::string& name);

}  // namespace lockstep::data
