// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/temp_folder.h"

namespace lockstep::testing {

using Steps = std::vector<std::int64_t>;

inline Value contents(std::int64_t step) {
  return Dict{{"step", step}, {"weights", torch::full({100}, step)}};
}

inline Steps steps_in(const CheckpointManager& manager) {
  Steps steps;
  for (const auto& info : manager.checkpoints()) steps.push_back(info.step);
  return steps;
}

// Turns one byte in the middle of a file round.
inline void damage(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto place = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
  stream.seekg(place);
  const auto byte = static_cast<char>(~stream.get());
  stream.seekp(place);
  stream.put(byte);
}

// A test of managers that save at once (false) and in the background (true).
class ManagerTest : public ::testing::TestWithParam<bool> {
 protected:
  CheckpointManagerOptions options() const {
    CheckpointManagerOptions given;
    given.async_save = GetParam();
    given.sync = false;
    return given;
  }
  TempFolder temp_;
  std::filesystem::path folder_ = temp_.path() / "runs" / "first";
};

inline std::string saving_name(const ::testing::TestParamInfo<bool>& each) {
  return each.param ? "Async" : "Blocking";
}

}  // namespace lockstep::testing
