// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/serialize/value.h>

namespace lockstep::ckpt {

/// What a file holds, of either format; of a safetensors file the dict of its tensors.
struct Checkpoint {
  std::filesystem::path file;
  Value value = {};
  safetensors::Metadata metadata = {};  ///< of a safetensors file
};

/// Throws CheckpointError naming the file.
Checkpoint read_checkpoint(const std::filesystem::path& file, const LoadOptions& options);

/// In the format that the extension of `file` says; a safetensors file needs a flat dict of tensors. Shows on
/// stderr how far it is. Throws CheckpointError, or ArgumentError for an unknown extension.
void write_checkpoint(const Value& value, const std::filesystem::path& file,
                      const safetensors::Metadata& metadata);

/// The metadata that readers of Hugging Face expect of PyTorch's tensors.
safetensors::Metadata usual_metadata();

}  // namespace lockstep::ckpt
