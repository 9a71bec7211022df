// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {

/// The real `lockstep ckpt`, in a new folder.
class Ckpt : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;
  struct Result {
    int code = 0;
    std::string out;
    std::string err;
  };

  std::string file(const std::string& name) const { return folder_.file(name); }
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  static Result run(Words words) {
    words.insert(words.begin(), "ckpt");
    LauncherProcess process(words);
    const int code = process.finish();
    return {code, process.out(), process.err()};
  }

  static std::string expect_success(const Words& words) {
    const auto result = run(words);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_THAT(result.err, ::testing::IsEmpty());
    return result.out;
  }

  // The message about it, in one line.
  static std::string expect_failure(const Words& words, int code = 1) {
    const auto result = run(words);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    return result.err;
  }

 private:
  TempFolder folder_;
};

}  // namespace lockstep::testing
