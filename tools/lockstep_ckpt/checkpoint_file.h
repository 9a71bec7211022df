// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/serialize/value.h>

namespace lockstep::ckpt {

/// What a file holds, or the folder of a distributed checkpoint; of a safetensors file the dict of its
/// tensors.
struct Checkpoint {
  std::filesystem::path file;
  Value value = {};
  safetensors::Metadata metadata = {};  ///< of a safetensors file
};

/// The tensors of a folder are put together in memory; of a file they can be mapped. Throws CheckpointError
/// naming the file.
Checkpoint read_checkpoint(const std::filesystem::path& file, const LoadOptions& options);

/// In the format that kind_to_write() says; a safetensors file needs a flat dict of tensors, a folder any
/// dict. Shows on stderr how far it is. Throws CheckpointError, or ArgumentError as kind_to_write() does.
void write_checkpoint(const Value& value, const std::filesystem::path& file,
                      const safetensors::Metadata& metadata);

/// The metadata that readers of Hugging Face expect of PyTorch's tensors.
safetensors::Metadata usual_metadata();

}  // namespace lockstep::ckpt
