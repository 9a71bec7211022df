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
// The key of the header's metadata.
constexpr std::string_view kMetadataKey = "__metadata__";

struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  // The range of its data, relative to the beginning of the data section.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<TensorInfo> tensors;
  Metadata metadata;
  std::uint64_t data_start = 0;
};

// Reads and checks the header of a file. Throws CheckpointError that names the source.
Header read_header(const serialize::ByteSource& source);

// A name as messages show it: quoted and truncated.
std::string shown(std::string_view name);

// The JSON text for these tensors, in their order, padded to a multiple of 8 bytes. Throws CheckpointError
// for a name or metadata that is not UTF-8.
std::string header_text(const std::vector<TensorInfo>& tensors, const Metadata& metadata);

}  // namespace lockstep::safetensors
