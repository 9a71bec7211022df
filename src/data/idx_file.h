// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

using ByteSpan = std::span<const std::uint8_t>;

// The bytes of a contiguous uint8 tensor.
ByteSpan as_bytes(const at::Tensor& bytes);

// The contents of a plain or gzip-compressed file, decompressed, as a uint8 tensor of shape [bytes]. Throws
// DataError naming the file.
at::Tensor read_file_bytes(const std::filesystem::path& file);

// Parses the contents of an IDX file. A tensor of one-byte values shares the memory of `bytes`. `name` is for
// messages. Throws DataError.
at::Tensor parse_idx(const at::Tensor& bytes, const std::string& name);

}  // namespace lockstep::data
