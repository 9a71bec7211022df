// SPDX-License-Identifier: BSD-3-Clause
// Files of live Python beside the usual ones: what is refused, and by which words, and what is read as any
// other.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/file_text.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing::odd_files_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMegabyte = 1 << 20;

// The most memory that this process has had at a time since it was last reset.
std::int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  ADD_FAILURE() << "no VmHWM in /proc/self/status";
  return 0;
}

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << '5'; }

class OddFiles : public ::testing::Test {
 protected:
  OddFiles() { run_python("parity/odd_files.py", {.args = {folder_.path().string()}}); }

  Value load_it(const std::string& name, const LoadOptions& options = {}) const {
    return load(folder_.file(name), options);
  }
  std::string error_of_load(const std::string& name, const LoadOptions& options = {}) const {
    return error_of([&] { load_it(name, options); });
  }

  TempFolder folder_;
};

TEST_F(OddFiles, AQuantizedTensorIsRejectedByName) {
  for (const auto* name : {"per_tensor.pt", "per_channel.pt", "old_per_tensor.pt"}) {
    EXPECT_THAT(error_of_load(name),
                AllOf(HasSubstr(folder_.file(name)), HasSubstr("the checkpoint has a quantized tensor"),
                      HasSubstr("dequantize it in Python first")));
  }
}

// 64 MB in 64 kB: they are never made.
TEST_F(OddFiles, CompressedRecordsAreRejectedWithoutUnpackingThem) {
  reset_peak_memory();
  const auto before = peak_memory();
  for (const bool mmap : {false, true}) {
    EXPECT_THAT(
        error_of_load("deflated.pt", {.mmap = mmap, .verify = true}),
        AllOf(HasSubstr(folder_.file("deflated.pt")), HasSubstr("is compressed"), HasSubstr("zip -0")));
  }
  EXPECT_LT(peak_memory() - before, 16 * kMegabyte);
}

TEST_F(OddFiles, SizesAndOffsetsIn64BitsAreRead) {
  EXPECT_THAT(text_of(folder_.file("zip64.pt")), HasSubstr("\xff\xff\xff\xff\xff\xff\xff\xff"));
  EXPECT_THAT(text_of(folder_.file("usual.pt")), Not(HasSubstr("\xff\xff\xff\xff\xff\xff\xff\xff")));
  const auto usual = load_it("usual.pt");
  for (const bool mmap : {false, true}) {
    const auto read = load_it("zip64.pt", {.mmap = mmap, .verify = true});
    EXPECT_TRUE(equal(read, usual));
    EXPECT_TRUE(read["rows"].as_tensor().is_alias_of(read["base"].as_tensor()));
  }
}

TEST_F(OddFiles, TensorsOfAGpuLoadToTheMapLocation) {
  const auto usual = load_it("usual.pt");
  for (const auto* name : {"cuda.pt", "old_cuda.pt"}) {
    for (const bool mmap : {false, true}) {
      const auto read = load_it(name, {.mmap = mmap});
      EXPECT_TRUE(equal(read, usual)) << name;
      EXPECT_TRUE(read["rows"].as_tensor().device().is_cpu());
      EXPECT_TRUE(read["rows"].as_tensor().is_alias_of(read["base"].as_tensor()));
    }
    EXPECT_TRUE(equal(load_it(name, {.map_location = at::kCPU}), usual)) << name;
    const auto shapes = load_it(name, {.map_location = at::kMeta});
    EXPECT_TRUE(shapes["parameter"].as_tensor().is_meta());
    EXPECT_EQ(shapes["rows"].as_tensor().sizes(), (std::vector<std::int64_t>{4, 6}));
  }
}

}  // namespace
}  // namespace lockstep::testing::odd_files_test
