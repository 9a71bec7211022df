// SPDX-License-Identifier: BSD-3-Clause
// Files travel both ways between us and the live Python package, and are the same bytes whoever writes them.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>

#include <gtest/gtest.h>

#include <lockstep/serialize/safetensors.h>

#include "support/file_text.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".safetensors";

std::vector<std::string> made_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == kExtension) names.push_back(entry.path().stem());
  }
  return names;
}

// Python writes metadata in an order that differs from run to run.
bool has_an_order(const safetensors::Metadata& metadata) { return metadata.size() < 2; }

// Reads what Python wrote in both formats, and writes both as safetensors.
void rewrite(const fs::path& folder, const std::string& name, const LoadOptions& options) {
  const auto file = folder / (name + ".safetensors");
  const auto metadata = safetensors::SafeOpen(file).metadata();
  const safetensors::SaveFileOptions save_options{.metadata = metadata, .sync = false};
  const auto read = folder / (name + ".read.safetensors");
  const auto from_pt = folder / (name + ".pt.safetensors");
  save_file(safetensors::load_file(file, options), read, save_options);
  save_file(load(folder / (name + ".pt")).as_dict(), from_pt, save_options);
  EXPECT_EQ(text_of(read), text_of(from_pt));
  if (has_an_order(metadata)) {
    EXPECT_EQ(text_of(read), text_of(file));
  }
}

void expect_same_files(const LoadOptions& options) {
  const TempFolder folder;
  run_python("parity/safetensors_files.py", {.args = {"make", folder.path().string()}});
  const auto names = made_files(folder.path());
  EXPECT_GE(names.size(), 30U);
  for (const auto& name : names) {
    SCOPED_TRACE(name);
    EXPECT_NO_THROW(rewrite(folder.path(), name, options));
  }
  const auto same = run_python("parity/safetensors_files.py", {.args = {"check", folder.path().string()}});
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(same, '\n')), names.size());
}

TEST(SafetensorsParity, FilesAreThoseOfPython) { expect_same_files({}); }

TEST(SafetensorsParity, FilesAreThoseOfPythonThroughMappedPages) { expect_same_files({.mmap = true}); }

TEST(SafetensorsParity, SafeOpenEqualsLoadFile) {
  const TempFolder folder;
  run_python("parity/safetensors_files.py", {.args = {"make", folder.path().string()}});
  const auto file = folder.path() / "all_dtypes.safetensors";
  const auto all = safetensors::load_file(file);
  const safetensors::SafeOpen opened(file);
  const auto keys = opened.keys();
  ASSERT_EQ(keys.size(), all.size());
  for (const auto& [key, value] : all) {
    const auto& name = key.as_string();
    EXPECT_TRUE(equal(Value(opened.get_tensor(name)), value)) << name;
    EXPECT_EQ(opened.dtype(name), value.as_tensor().scalar_type());
    EXPECT_EQ(opened.shape(name), value.as_tensor().sizes());
    EXPECT_EQ(opened.nbytes(name), value.as_tensor().nbytes());
  }
}

std::map<std::string, std::string> contents_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename()] = text_of(entry.path());
  return files;
}

TEST(SafetensorsParity, FoldersOfModelHubsAreTheSame) {
  const TempFolder folder;
  const std::vector<std::string> sizes{"900", "100", "1000000", "600", "1"};
  std::vector<std::string> args{folder.path().string()};
  args.insert(args.end(), sizes.begin(), sizes.end());
  run_python("parity/safetensors_folder.py", {.args = args});
  const auto expected = load(folder / "dict.pt").as_dict();
  for (const auto& size : sizes) {
    SCOPED_TRACE(size);
    const auto python = folder / ("python-" + size), ours = folder / "ours";
    safetensors::save_torch_state_dict(expected, ours, {.max_shard_size = std::stoull(size), .sync = false});
    EXPECT_EQ(contents_of(ours), contents_of(python));
    for (const auto& path : {python, python / "model.safetensors.index.json"}) {
      if (!fs::exists(path)) continue;
      const auto loaded = safetensors::load_torch_state_dict(path);
      ASSERT_EQ(loaded.size(), expected.size());
      for (const auto& [name, tensor] : expected) EXPECT_TRUE(equal(loaded.at(name), tensor)) << repr(name);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
