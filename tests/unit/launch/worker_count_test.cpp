// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/worker_count.h>

namespace lockstep::launch {
namespace {

TEST(WorkerCount, UnderstandsNumbersAndWords) {
  const Machine with_gpus{.cores = 6, .gpus = 2};
  const Machine without_gpus{.cores = 6, .gpus = 0};
  EXPECT_EQ(worker_count("17", without_gpus), 17);
  EXPECT_EQ(worker_count("cpu", with_gpus), 6);
  EXPECT_EQ(worker_count("gpu", with_gpus), 2);
  EXPECT_EQ(worker_count("auto", with_gpus), 2);
  EXPECT_EQ(worker_count("auto", without_gpus), 6);
  EXPECT_THROW(worker_count("gpu", without_gpus), ArgumentError);
}

TEST(WorkerCount, RefusesAnythingElse) {
  for (const char* text : {"0", "-1", "", "abc", "2x", " 2", "1.5", "99999999999"}) {
    EXPECT_THROW(worker_count(text, {.cores = 6, .gpus = 2}), ArgumentError) << '"' << text << '"';
  }
}

class VisibleGpus : public ::testing::Test {
 protected:
  VisibleGpus() {
    std::string name = ::testing::TempDir() + "/gpusXXXXXX";
    folder_ = ::mkdtemp(name.data());
    for (const char* node : {"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia"}) {
      std::ofstream(folder_ / node) << "";
    }
  }
  ~VisibleGpus() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(VisibleGpus, AreTheNumberedNodes) {
  EXPECT_EQ(visible_gpus(folder_, std::nullopt), 3);
  EXPECT_EQ(visible_gpus(folder_ / "none", std::nullopt), 0);
}

TEST_F(VisibleGpus, AreCutDownAsCudaDoes) {
  EXPECT_EQ(visible_gpus(folder_, "0,2"), 2);
  EXPECT_EQ(visible_gpus(folder_, " 1 , 0"), 2);
  EXPECT_EQ(visible_gpus(folder_, ""), 0);
  EXPECT_EQ(visible_gpus(folder_, "-1"), 0);
  EXPECT_EQ(visible_gpus(folder_, "0,-1,1"), 1);
  EXPECT_EQ(visible_gpus(folder_, "1,7,0"), 1);
  EXPECT_EQ(visible_gpus(folder_, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), 1);
}

}  // namespace
}  // namespace lockstep::launch
