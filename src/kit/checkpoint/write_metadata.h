// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/distributed_metadata.h"

namespace lockstep::distributed_checkpoint {

// The contents of `.metadata`: the pickle that Python reads, followed by the structure, which Python ignores.
struct MetadataParts {
  std::string_view pickle;
  std::string_view structure;
};
// An attribute of Python's Metadata, which Python ignores: the file has a trailer.
constexpr const char* kHasTrailer = "lockstep_trailer";
// The parts of a file. Metadata that Python wrote are a pickle only. Throws CheckpointError when the checksum
// differs.
MetadataParts without_trailer(std::string_view text);

// A pickle of Python's `Metadata`, followed by the structure and a checksum, which Python ignores.
std::string write_metadata(const Metadata& metadata);
// Replaces `.metadata` atomically. Throws CheckpointError.
void write_metadata_file(const Metadata& metadata, const std::filesystem::path& folder, bool sync);

}  // namespace lockstep::distributed_checkpoint
