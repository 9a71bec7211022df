// SPDX-License-Identifier: BSD-3-Clause
#include "machine/gpu.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_smi.h"
#include "support/temp_folder.h"

namespace lockstep::machine {
namespace {

using ::testing::ElementsAre;
using testing::FakeSmi;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kMebibyte = 1 << 20;

// Puts it in front on PATH, which is the process's and so restored.
class WithSmi {
 public:
  explicit WithSmi(const std::string& path) : before_(std::getenv("PATH")) {
    ::setenv("PATH", path.c_str(), 1);
  }
  ~WithSmi() { ::setenv("PATH", before_.c_str(), 1); }
  WithSmi(const WithSmi&) = delete;
  WithSmi& operator=(const WithSmi&) = delete;

 private:
  std::string before_;
};

Gpus read_with(const FakeSmi& smi, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const WithSmi in_front(smi.path());
  return read_gpus(std::nullopt, timeout);
}

TEST(Gpus, AreReadFromNvidiaSmi) {
  const auto found = read_with(testing::two_gpus());
  EXPECT_TRUE(found.has_smi);
  EXPECT_THAT(found.problem, IsEmpty());
  ASSERT_THAT(found.gpus, SizeIs(2));
  const auto& gpu = found.gpus[0];
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.uuid, "GPU-aaaa-1");
  EXPECT_EQ(gpu.pci_bus, "00000000:1B:00.0");
  EXPECT_EQ(gpu.memory_total, 143771 * kMebibyte);
  EXPECT_EQ(gpu.memory_used, 2048 * kMebibyte);
  EXPECT_EQ(gpu.utilization, 97);
  EXPECT_EQ(gpu.temperature, 54);
  EXPECT_EQ(gpu.power, 412.53);
  EXPECT_EQ(gpu.power_limit, 700);
  EXPECT_EQ(gpu.driver, "570.86.15");
  EXPECT_EQ(gpu.compute_mode, "Default");
  EXPECT_EQ(gpu.mig_mode, "Disabled");
  EXPECT_EQ(gpu.ecc_errors, 0);
}

TEST(Gpus, OmitValuesThatNvidiaSmiDoesNotKnow) {
  const auto found = read_with(testing::two_gpus());
  ASSERT_THAT(found.gpus, SizeIs(2));
  const auto& gpu = found.gpus[1];
  EXPECT_EQ(gpu.name, "NVIDIA A10, odd");
  EXPECT_EQ(gpu.utilization, std::nullopt);
  EXPECT_EQ(gpu.power, std::nullopt);
  EXPECT_EQ(gpu.mig_mode, "");
  EXPECT_EQ(gpu.ecc_errors, 3);
}

TEST(Gpus, ListTheirProcesses) {
  const auto found = read_with(testing::two_gpus());
  ASSERT_THAT(found.gpus, SizeIs(2));
  const auto& processes = found.gpus[0].processes;
  ASSERT_THAT(processes, SizeIs(2));
  EXPECT_EQ(processes[0].pid, 4194301);
  EXPECT_EQ(processes[0].memory, 1536 * kMebibyte);
  EXPECT_EQ(processes[0].command, "/usr/bin/python3");
  EXPECT_EQ(processes[1].memory, std::nullopt);
  EXPECT_EQ(processes[1].command, "./train, 2");
  EXPECT_THAT(found.gpus[1].processes, IsEmpty());
}

TEST(Gpus, ShowTheCommandLineOfTheRightProcess) {
  const auto own = fmt::format("echo 'GPU-aaaa-1, {}, 5, /anywhere/test_machine'", ::getpid());
  const auto other = fmt::format("echo 'GPU-aaaa-1, {}, 5, /usr/bin/python3'", ::getpid());
  const std::string gpu = "echo '0, GPU-aaaa-1, x, 1, 1, 1, 1, 1, 1, 1, Default, Disabled, 0, A'";
  EXPECT_THAT(read_with({gpu, own}).gpus.at(0).processes.at(0).command, HasSubstr("test_machine"));
  EXPECT_EQ(read_with({gpu, other}).gpus.at(0).processes.at(0).command, "/usr/bin/python3");
}

TEST(Gpus, WithoutNvidiaSmiThereAreNone) {
  const WithSmi nothing("/nonexistent");
  const auto found = read_gpus(std::nullopt);
  EXPECT_FALSE(found.has_smi);
  EXPECT_THAT(found.gpus, IsEmpty());
  EXPECT_THAT(found.problem, IsEmpty());
}

TEST(Gpus, AFailureShowsTheOutputOfNvidiaSmi) {
  const auto found =
      read_with({"echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9", "exit 9"});
  EXPECT_TRUE(found.has_smi);
  EXPECT_THAT(found.gpus, IsEmpty());
  EXPECT_EQ(found.problem,
            "nvidia-smi failed with exit code 9: NVIDIA-SMI has failed because it could not talk to the "
            "driver.");
}

TEST(Gpus, AFailureKeepsCompleteRows) {
  const auto found =
      read_with({"echo '0, GPU-a, x, 1, 1, 1, 1, 1, 1, 1, Default, Disabled, 0, A'; echo 'Unable "
                 "to determine the device handle for GPU1: GPU is lost.' >&2; exit 15",
                 "true"});
  EXPECT_THAT(found.gpus, SizeIs(1));
  EXPECT_THAT(found.problem, HasSubstr("exit code 15: Unable to determine"));
}

TEST(Gpus, AHangEndsAtTheDeadline) {
  const auto found = read_with({"echo waiting; sleep 1000", "sleep 1000"}, std::chrono::milliseconds(50));
  EXPECT_TRUE(found.has_smi);
  EXPECT_THAT(found.problem, HasSubstr("nvidia-smi gave no answer within 0.05 s"));
}

std::vector<int> shown(const std::string& value) {
  std::vector<Gpu> gpus{{.index = 0, .uuid = "GPU-aa11"},
                        {.index = 1, .uuid = "GPU-bb22"},
                        {.index = 2, .uuid = "GPU-cc33", .mig_mode = "Enabled"}};
  mark_hidden(gpus, value);
  std::vector<int> indices;
  for (const auto& gpu : gpus) {
    if (!gpu.hidden) indices.push_back(gpu.index);
  }
  return indices;
}

TEST(Gpus, AreHiddenAsByCuda) {
  EXPECT_THAT(shown("0,2"), ElementsAre(0, 2));
  EXPECT_THAT(shown(" 1 , 0"), ElementsAre(0, 1));
  EXPECT_THAT(shown(""), IsEmpty());
  EXPECT_THAT(shown("-1,0"), IsEmpty());
  EXPECT_THAT(shown("1,7,0"), ElementsAre(1));
  EXPECT_THAT(shown("GPU-bb"), ElementsAre(1));
  EXPECT_THAT(shown("MIG-1234,0"), ElementsAre(0, 2));
  std::vector<Gpu> gpus{{.index = 0}};
  mark_hidden(gpus, std::nullopt);
  EXPECT_FALSE(gpus[0].hidden);
}

class VisibleGpus : public ::testing::Test {
 protected:
  VisibleGpus() {
    for (const char* node : {"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia"}) {
      std::ofstream(temp_ / node) << "";
    }
  }

  lockstep::testing::TempFolder temp_;
  const std::filesystem::path& folder_ = temp_.path();
};

TEST_F(VisibleGpus, AreTheNumberedNodes) {
  EXPECT_EQ(visible_gpus(folder_, std::nullopt), 3);
  EXPECT_EQ(visible_gpus(folder_ / "none", std::nullopt), 0);
}

TEST_F(VisibleGpus, AreLimitedAsByCuda) {
  EXPECT_EQ(visible_gpus(folder_, "0,2"), 2);
  EXPECT_EQ(visible_gpus(folder_, " 1 , 0"), 2);
  EXPECT_EQ(visible_gpus(folder_, ""), 0);
  EXPECT_EQ(visible_gpus(folder_, "-1"), 0);
  EXPECT_EQ(visible_gpus(folder_, "0,-1,1"), 1);
  EXPECT_EQ(visible_gpus(folder_, "1,7,0"), 1);
  EXPECT_EQ(visible_gpus(folder_, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), 1);
}

}  // namespace
}  // namespace lockstep::machine
