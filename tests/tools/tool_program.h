// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {

/// The real `lockstep <command>`, in a new folder.
class ToolProgram : public ::testing::Test {
 protected:
  explicit ToolProgram(std::string command) : command_(std::move(command)) {}

  using Words = std::vector<std::string>;
  struct Result {
    int code = 0;
    std::string out;
    std::string err;
  };

  std::string file(const std::string& name) const { return folder_.file(name); }
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  Result run(Words words) const {
    words.insert(words.begin(), command_);
    LauncherProcess process(words);
    const int code = process.finish();
    return {code, process.out(), process.err()};
  }

  std::string expect_success(const Words& words) const {
    const auto result = run(words);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.err, ::testing::IsEmpty());
    return result.out;
  }

  // The message about it, in one line.
  std::string expect_failure(const Words& words, int code = 1) const {
    const auto result = run(words);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    return result.err;
  }

 private:
  std::string command_;
  TempFolder folder_;
};

class Ckpt : public ToolProgram {
 protected:
  Ckpt() : ToolProgram("ckpt") {}
};

}  // namespace lockstep::testing
