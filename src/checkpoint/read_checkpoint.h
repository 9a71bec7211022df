// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <lockstep/serialize/torch_file.h>

namespace lockstep::checkpointing {

/// A file, or the folder of a distributed checkpoint, which cannot be mapped: it is put together in memory.
/// Throws CheckpointError.
Value read_checkpoint(const std::filesystem::path& file, const LoadOptions& options);

}  // namespace lockstep::checkpointing
