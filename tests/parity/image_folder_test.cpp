// SPDX-License-Identifier: BSD-3-Clause
// Folders that Python draws: ImageFolder and DatasetFolder list the same samples as torchvision's.
#include <string>

#include <gtest/gtest.h>

#include <lockstep/data/image_folder.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

constexpr int kCases = 500;

std::vector<std::string> strings_of(const Value& list) {
  std::vector<std::string> strings;
  for (const auto& item : list.as_items()) strings.push_back(item.as_string());
  return strings;
}

data::DatasetFolder open(const Dict& drawn) {
  const std::string root = drawn.at("root").as_string();
  data::DatasetFolderOptions options{.allow_empty = drawn.at("allow_empty").as_bool()};
  if (!drawn.contains("extensions")) return data::ImageFolder(root, options);
  options.extensions = strings_of(drawn.at("extensions"));
  return {root, [](const std::filesystem::path&) { return at::Tensor(); }, options};
}

void expect_equal(const data::DatasetFolder& dataset, const Dict& expected) {
  EXPECT_EQ(dataset.classes(), strings_of(expected.at("classes")));
  std::map<std::string, std::int64_t> class_to_idx;
  for (const auto& [name, index] : expected.at("class_to_idx").as_dict()) {
    class_to_idx[name.as_string()] = index.as_int();
  }
  EXPECT_EQ(dataset.class_to_idx(), class_to_idx);
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < dataset.size(); ++i) paths.push_back(dataset.path(i).string());
  EXPECT_EQ(paths, strings_of(expected.at("paths")));
  std::vector<std::int64_t> targets;
  for (const auto& target : expected.at("targets").as_items()) targets.push_back(target.as_int());
  EXPECT_EQ(dataset.targets(), targets);
}

TEST(ImageFolder, ListsTheSamplesOfTorchvision) {
  const TempFolder folder;
  run_python("parity/folder_cases.py", {.args = {folder.path().string(), std::to_string(kCases)}});
  int refused = 0;
  const auto cases = load(folder.file("cases.pt"));
  for (const auto& drawn : cases.as_items()) {
    const auto& expected = drawn.as_dict();
    SCOPED_TRACE(expected.at("root").as_string());
    if (expected.contains("error")) {
      EXPECT_THROW(open(expected), DataError);
      ++refused;
    } else {
      expect_equal(open(expected), expected);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, kCases / 2);
}

}  // namespace
}  // namespace lockstep::testing
