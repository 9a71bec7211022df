// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include <lockstep/serialize/safetensors.h>

#include "serialize/byte_source.h"

namespace lockstep::safetensors {

constexpr std::uint64_t kLargestHeader = 100'000'000;
/// The key of the header that names no tensor.
constexpr std::string_view kMetadataKey = "__metadata__";

struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  // Of its data, from the start of the file's data.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<TensorInfo> tensors;
  Metadata metadata;
  std::uint64_t data_start = 0;
};

/// The header of a file, of which everything has been checked. Throws CheckpointError naming the source.
Header read_header(const serialize::ByteSource& source);

/// A name for messages: quoted, and short enough.
std::string shown(std::string_view name);

/// The bytes of a tensor of this shape. Throws CheckpointError when a tensor cannot be that large.
std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype);

}  // namespace lockstep::safetensors
