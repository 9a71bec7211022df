// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>

#include <gtest/gtest.h>

#include "spawn/forked_rank.h"
#include "support/temp_folder.h"

namespace lockstep::spawning {
namespace {

// /proc/self/fd is a folder of links like these.
TEST(ForkCheck, DetectsInitializedCuda) {
  const testing::TempFolder folder;
  std::filesystem::create_symlink("/dev/null", folder.file("0"));
  std::filesystem::create_symlink("socket:[1]", folder.file("1"));
  std::filesystem::create_symlink("/dev/nvidiactl", folder.file("2"));
  EXPECT_FALSE(has_cuda_open(folder.path())) << "only asked about";
  std::filesystem::create_symlink("/dev/nvidia-uvm", folder.file("3"));
  EXPECT_TRUE(has_cuda_open(folder.path()));
}

}  // namespace
}  // namespace lockstep::spawning
