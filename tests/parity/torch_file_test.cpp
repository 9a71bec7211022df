// SPDX-License-Identifier: BSD-3-Clause
// Files travel both ways: what live Python's torch.save writes, load() reads, save() writes again, and
// torch.load(weights_only=True) finds unchanged.
#include <algorithm>
#include <filesystem>
#include <tuple>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

int lines_of(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

void expect_round_trips(const std::string& group, const LoadOptions& options, int least) {
  const TempFolder folder;
  run_python("parity/structures.py", {.args = {"make", folder.path().string(), group}});
  const auto files = files_in(folder.path());
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename());
    const auto out = fs::path(file).replace_extension(".out.pt");
    EXPECT_NO_THROW(save(load(file, options), out, {.sync = false}));
  }
  const auto same = run_python("parity/structures.py", {.args = {"check", folder.path().string(), group}});
  EXPECT_EQ(lines_of(same), static_cast<int>(files.size()));
  EXPECT_GE(lines_of(same), least);
}

TEST(TorchFile, StructuresOfPythonRoundTrip) { expect_round_trips("small", {}, 60); }

TEST(TorchFile, StructuresOfPythonRoundTripWithChecksums) {
  expect_round_trips("small", {.verify = true}, 60);
}

TEST(TorchFile, StructuresOfPythonRoundTripThroughMappedPages) {
  expect_round_trips("small", {.mmap = true}, 60);
}

TEST(TorchFile, NumpyScalarsArePlainNumbers) {
  const TempFolder folder;
  run_python("parity/numpy_scalars.py", {.args = {folder.file("numbers.pt")}});
  const auto numbers = load(folder.file("numbers.pt"));
  for (const auto& [name, pair] : numbers.as_dict()) {
    const auto& [scalar, plain] = std::tie(pair.as_items()[0], pair.as_items()[1]);
    EXPECT_TRUE(equal(scalar, plain))
        << name.as_string() << ": " << repr(scalar) << " instead of " << repr(plain);
  }
  EXPECT_GE(numbers.as_dict().size(), 12U);
}

// What only C++ can write: views of one storage in several dtypes, a storage of an odd size.
TEST(TorchFile, ViewsOfOtherDtypesReachPython) {
  const TempFolder folder;
  const auto base = at::arange(8, at::kFloat);
  const auto odd = at::arange(10, at::kByte);
  save(Dict{{"base", base},
            {"ints", base.view(at::kInt)},
            {"halves", base.view(at::kHalf)},
            {"odd", at::empty({0}, at::kFloat).set_(odd.storage(), 0, {2}, {1})}},
       folder.file("views.pt"));
  EXPECT_EQ(run_python("parity/dtype_views.py", {.args = {folder.file("views.pt")}}), "shared\n");
}

TEST(TorchFile, Gpt2WithItsOptimizerRoundTrips) { expect_round_trips("large", {.mmap = true}, 1); }

}  // namespace
}  // namespace lockstep::testing
