// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/host_checks.h"
#include "unit/doctor/findings.h"

namespace lockstep::doctor {
namespace {

using machine::Gpu;
using machine::Gpus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Gpus one(const Gpu& gpu) { return {.has_smi = true, .gpus = {gpu}}; }
const GpuDriver kDriver{.version = "NVRM version: 570.86.15", .devices = 1};

TEST(CheckGpuDriver, AgreesWithNvidiaSmi) {
  EXPECT_THAT(check_gpu_driver({}, {}), is_ok());
  EXPECT_THAT(check_gpu_driver(kDriver, one({.driver = "570.86.15"})), is_ok());
  EXPECT_THAT(check_gpu_driver(kDriver, {}), is_warning("nvidia-smi is not on PATH"));
  EXPECT_THAT(check_gpu_driver(kDriver, {.has_smi = true}),
              is_problem("the kernel lists 1 GPUs, nvidia-smi 0"));
  EXPECT_THAT(check_gpu_driver({.version = "x", .devices = 2}, one({})), is_problem("2 GPUs, nvidia-smi 1"));
  EXPECT_THAT(check_gpu_driver(kDriver, one({.hidden = true})), is_warning("hides all 1 GPUs"));
}

TEST(CheckGpuDriver, AdvisesOnNvidiaSmiErrors) {
  const auto remedy_of = [](const std::string& said) {
    const auto finding = check_gpu_driver(kDriver, {.has_smi = true, .problem = said});
    EXPECT_THAT(finding, is_problem(said));
    return finding.remedy;
  };
  EXPECT_THAT(remedy_of("Unable to determine the device handle for GPU 0: GPU is lost."),
              HasSubstr("reboot"));
  EXPECT_THAT(remedy_of("GPU has fallen off the bus"), HasSubstr("Xid"));
  EXPECT_THAT(remedy_of("Driver/library version mismatch"), HasSubstr("updated"));
  EXPECT_THAT(remedy_of("nvidia-smi gave no answer within 10 s"), HasSubstr("hangs"));
  EXPECT_THAT(remedy_of("couldn't communicate with the NVIDIA driver"), HasSubstr("modprobe"));
}

TEST(CheckGpus, FindsFaultyGpus) {
  EXPECT_THAT(check_gpus(one({.name = "A", .memory_total = 1000, .memory_used = 10})), ElementsAre(is_ok()));
  EXPECT_THAT(check_gpus(one({.ecc_errors = 2})), ElementsAre(is_problem("2 uncorrected ECC errors")));
  EXPECT_THAT(check_gpus(one({.compute_mode = "Prohibited"})), ElementsAre(is_problem("Prohibited")));
  EXPECT_THAT(check_gpus(one({.compute_mode = "Exclusive_Process"})), ElementsAre(is_warning("one process")));
  EXPECT_THAT(check_gpus(one({.memory_total = 1000, .memory_used = 200})),
              ElementsAre(is_warning("200 B of")));
  EXPECT_THAT(check_gpus(one({.processes = {{.pid = 7, .command = "python3 train.py"}}})),
              ElementsAre(is_warning("by python3 train.py (pid 7)")));
  EXPECT_THAT(check_gpus(one({.ecc_errors = 2, .hidden = true})), IsEmpty());
}

TEST(CheckCuda, MatchesTheGpus) {
  EXPECT_THAT(check_cuda({}, {}), is_ok());
  EXPECT_THAT(check_cuda({}, one({.hidden = true})), is_ok());
  EXPECT_THAT(check_cuda({}, one({})), is_warning("built without CUDA"));
  EXPECT_THAT(check_cuda({.cuda = "12.8"}, one({})), is_problem("cannot use any"));
  EXPECT_THAT(check_cuda({.cuda = "12.8", .cuda_devices = 1}, one({})), is_ok());
}

}  // namespace
}  // namespace lockstep::doctor
