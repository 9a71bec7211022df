// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

namespace lockstep::data {

// Runs `action`. The readers that this layer shares with checkpoints throw CheckpointErrors, which become
// DataErrors with the same text.
template <typename Action>
auto as_data_errors(Action action) {
  try {
    return action();
  } catch (const CheckpointError& error) {
    throw DataError(error.what());
  }
}

// The pages of a file as a uint8 tensor of shape [bytes], read on first access and copied on write. Throws
// DataError naming the file.
at::Tensor map_file(const std::filesystem::path& file);

}  // namespace lockstep::data
