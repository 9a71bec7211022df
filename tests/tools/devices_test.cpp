// SPDX-License-Identifier: BSD-3-Clause
// `lockstep devices`, the real program, with GPUs that a script makes up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "support/fake_smi.h"
#include "support/launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;
using Env = std::map<std::string, std::string>;

std::string devices(const Words& options, const Env& env) {
  Words words{"devices"};
  words.insert(words.end(), options.begin(), options.end());
  LauncherProcess process(words, {.env = env});
  EXPECT_EQ(process.finish(), 0) << process.out();
  EXPECT_THAT(process.err(), IsEmpty());
  return process.out();
}

TEST(DevicesCommand, ShowsATable) {
  const auto smi = two_gpus();
  const auto table = devices({}, {{"PATH", smi.path()}, {"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_THAT(table,
              AllOf(ContainsRegex("DEVICE +NAME +CORES +MEMORY IN USE +BUSY +NOTES\n"),
                    ContainsRegex("\ncpu .* of [0-9]+ .*load "), ContainsRegex("\nmemory .* of .* [GT]iB"),
                    ContainsRegex("\ngpu 0 +NVIDIA H200 +2.0 GiB of 140.4 GiB +97% +54 C, 413 of 700 W")));
  EXPECT_THAT(table, ContainsRegex("pid 4194301, 1.5 GiB: /usr/bin/python3\n"));
  EXPECT_THAT(table,
              ContainsRegex("gpu 1 .*hidden by CUDA_VISIBLE_DEVICES.*Exclusive_Process.*3 uncorrected"));
}

TEST(DevicesCommand, ReportsThatThereIsNoGpu) {
  EXPECT_THAT(devices({}, {{"PATH", "/nonexistent"}}), HasSubstr("nvidia-smi is not on PATH\n"));
}

TEST(DevicesCommand, ShowsTheErrorOfNvidiaSmi) {
  const FakeSmi smi("echo 'driver mismatch'; exit 18", "exit 18");
  EXPECT_THAT(devices({}, {{"PATH", smi.path()}}), HasSubstr("failed with exit code 18: driver mismatch\n"));
}

TEST(DevicesCommand, WritesJson) {
  const auto smi = two_gpus();
  const auto document = nlohmann::json::parse(devices({"--json"}, {{"PATH", smi.path()}}));
  EXPECT_EQ(document["cpu"]["usable"], usable_cores());
  EXPECT_EQ(document["gpus"][0]["memory_total_bytes"], std::uint64_t{143771} << 20);
  EXPECT_EQ(document["gpus"][1]["utilization_percent"], nullptr);
  EXPECT_EQ(document["gpus"][0]["processes"][1]["command"], "./train, 2");
  EXPECT_GT(document["memory"]["total_bytes"], 0);
}

TEST(DevicesCommand, WatchesUntilCtrlC) {
  LauncherProcess process({"devices", "--watch=0.1"}, {.env = {{"PATH", "/nonexistent"}}});
  process.wait_for("DEVICE", 3);
  process.send(SIGINT);
  EXPECT_EQ(process.finish(), 0);
  EXPECT_THAT(process.out(), HasSubstr("\n\nDEVICE"));
}

TEST(DevicesCommand, RedrawsOnATerminal) {
  LauncherProcess process({"devices", "--watch", "0.1"},
                          {.env = {{"PATH", "/nonexistent"}}, .output = Output::terminal});
  process.wait_for("\x1b[H\x1b[J", 2);
  process.type("\x03");
  EXPECT_EQ(process.finish(), 0);
}

TEST(DevicesCommand, EndsWhenItsOutputHasNoReader) {
  LauncherProcess process({"devices", "--watch=0.1", "--json"}, {.env = {{"PATH", "/nonexistent"}}});
  process.wait_for("}\n");
  process.stop_reading_stdout();
  EXPECT_EQ(process.finish(), 0);
}

TEST(DevicesCommand, RejectsInvalidIntervals) {
  LauncherProcess process({"devices", "--watch=0"});
  EXPECT_EQ(process.finish(), 2);
  EXPECT_THAT(process.err(), HasSubstr("--watch=0: the seconds must be in"));
}

}  // namespace
}  // namespace lockstep::testing
