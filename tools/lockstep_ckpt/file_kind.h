// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::ckpt {

enum class FileKind : std::uint8_t {
  torch_file,
  safetensors,
  folder,  ///< of torch.distributed.checkpoint
};

/// What the extension says: .safetensors, or one of .pt, .pth, .bin, .ckpt; a folder without one, or where
/// there is a folder or the name ends with a slash. Throws ArgumentError for another, and for a folder that
/// has other things in it.
FileKind kind_to_write(const std::filesystem::path& file);

/// The same for one that exists; any other extension is PyTorch's. Throws CheckpointError for a folder of
/// several checkpoints.
FileKind kind_to_read(const std::filesystem::path& file);

}  // namespace lockstep::ckpt
