// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <functional>

#include <lockstep/serialize/torch_file.h>

namespace lockstep::checkpointing {

/// Runs `read`, which reads the folder of a distributed checkpoint, and once more when it throws
/// CheckpointError because another save took the place of the table meanwhile: the files of the old one go.
void read_again_if_replaced(const std::filesystem::path& folder, const std::function<void()>& read);

/// A file, or the folder of a distributed checkpoint, which cannot be mapped: it is put together in memory.
/// Throws CheckpointError.
Value read_checkpoint(const std::filesystem::path& file, const LoadOptions& options);

}  // namespace lockstep::checkpointing
