// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>

#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/serialize/value.h>

namespace lockstep::ckpt {

enum class FileKind : std::uint8_t {
  torch_file,
  safetensors,
  folder,  // of torch.distributed.checkpoint
};

// The format that the extension selects: .safetensors, or .pt, .pth, .bin, .ckpt; a folder without an
// extension. Throws ArgumentError for others, and for a folder with other contents.
FileKind kind_to_write(const std::filesystem::path& file);

// The format of an existing checkpoint; any other extension is PyTorch's. Throws CheckpointError for a folder
// of several checkpoints.
FileKind kind_to_read(const std::filesystem::path& file);

// The contents of a file or a folder; for safetensors the dict of tensors.
struct Checkpoint {
  std::filesystem::path file;
  Value value = {};
  safetensors::Metadata metadata = {};  // of a safetensors file
};

// Reads a checkpoint. A folder is assembled in memory; a file can be mapped. Throws CheckpointError.
Checkpoint read_checkpoint(const std::filesystem::path& file, const LoadOptions& options);

// Writes the format of kind_to_write() and shows progress on stderr. A safetensors file needs a flat dict of
// tensors, a folder any dict. Throws CheckpointError, and ArgumentError as kind_to_write() does.
void write_checkpoint(const Value& value, const std::filesystem::path& file,
                      const safetensors::Metadata& metadata);

// The metadata that Hugging Face's readers expect for PyTorch tensors.
inline const safetensors::Metadata kUsualMetadata = {{"format", "pt"}};
// The checkpoint's own metadata or, without any, the usual.
safetensors::Metadata metadata_of(const Checkpoint& checkpoint);

}  // namespace lockstep::ckpt
