// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <iterator>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/subset.h>
#include <lockstep/data/vision.h>
#include <lockstep/serialize/torch_file.h>

#include "parity/sampler_case.h"
#include "support/file_text.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::data {
namespace {

using testing::SamplerCase;
using testing::text_of;
using Lists = std::vector<std::vector<std::int64_t>>;

// The lists of a case; -1 ends each.
Lists lists_of(const SamplerCase& each) {
  Lists lists(1);
  for (const auto number : each.numbers) {
    number == -1 ? (void)lists.emplace_back() : lists.back().push_back(number);
  }
  lists.pop_back();
  return lists;
}

std::vector<std::int64_t> list_of(const at::Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<std::int64_t>();
  return {begin, begin + tensor.numel()};
}

// The oracle runs once for all the tests of this file.
class SplitParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cases_ = testing::parse_cases(testing::run_python("parity/split_cases.py"));
  }
  static inline std::vector<SamplerCase> cases_;
};

TEST_F(SplitParity, RandomSplitIndexForIndex) {
  int compared = 0;
  // random_split() warns of empty splits.
  ::setenv("LOCKSTEP_LOG_LEVEL", "error", 1);
  for (const auto& each : cases_) {
    if (each.kind != "random_split") continue;
    const auto lists = lists_of(each);
    std::vector<SplitSize> lengths;
    for (const auto part : lists[0]) {
      if (each["denominator"] == 0) {
        lengths.emplace_back(part);
      } else {
        lengths.emplace_back(static_cast<double>(part) / static_cast<double>(each["denominator"]));
      }
    }
    torch::manual_seed(static_cast<std::uint64_t>(each["default_seed"]));
    std::optional<at::Generator> own;
    if (each["own_seed"] >= 0) {
      own = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(each["own_seed"]));
    }
    Lists found{lists[0]};
    for (const auto& split : random_split_indices(each["n"], lengths, own)) found.push_back(list_of(split));
    ASSERT_EQ(found, lists) << each.line;
    ++compared;
  }
  ::unsetenv("LOCKSTEP_LOG_LEVEL");
  EXPECT_GE(compared, 500);
}

std::optional<SplitSize> size_of(std::int64_t kind, std::int64_t number) {
  if (kind == 0) return std::nullopt;
  return kind == 1 ? SplitSize(number) : SplitSize(static_cast<double>(number) / 1000);
}

TEST_F(SplitParity, StratifiedShuffleSplitIndexForIndex) {
  int compared = 0;
  int refused = 0;
  for (const auto& each : cases_) {
    if (each.kind != "stratified") continue;
    const auto lists = lists_of(each);
    const auto labels = at::tensor(lists[0], at::kLong);
    const StratifiedSplitOptions options{.test_size = size_of(each["test_kind"], each["test"]),
                                         .train_size = size_of(each["train_kind"], each["train"]),
                                         .seed = each["seed"]};
    if (each["error"] != 0) {
      ASSERT_THROW(stratified_shuffle_split(labels, options), ArgumentError) << each.line;
      ++refused;
      continue;
    }
    const auto split = stratified_shuffle_split(labels, options);
    ASSERT_EQ(Lists({lists[0], list_of(split.train), list_of(split.test)}), lists) << each.line;
    ++compared;
  }
  EXPECT_GE(compared, 500);
  EXPECT_GE(refused, 20);
}

TEST_F(SplitParity, TrainValSplitIndexForIndex) {
  int compared = 0;
  for (const auto& each : cases_) {
    if (each.kind != "train_val") continue;
    const auto lists = lists_of(each);
    const auto split = train_val_split_indices(
        at::tensor(lists[0], at::kLong),
        {.val_fraction = static_cast<double>(each["thousandths"]) / 1000, .seed = each["seed"]});
    ASSERT_EQ(list_of(split.train), lists[1]) << each.line;
    ASSERT_EQ(list_of(split.val), lists[2]) << each.line;
    ++compared;
  }
  EXPECT_GE(compared, 500);
}

TEST(ClassIndices, AreTheBytesOfPython) {
  const testing::TempFolder folder;
  testing::run_python("parity/class_indices.py", {.args = {folder.path().string()}});
  const auto expected = load(folder.file("expected.pt"));
  ASSERT_GE(expected.as_dict().size(), 50U);
  for (const auto& [name, value] : expected.as_dict()) {
    std::vector<std::string> classes;
    for (const auto& each : value.as_items()) classes.push_back(each.as_string());
    const auto file = folder / name.as_string();
    EXPECT_EQ(read_class_indices(file), classes);
    write_class_indices(folder / "written.json", classes);
    ASSERT_EQ(text_of(folder / "written.json"), text_of(file));
  }
}

}  // namespace
}  // namespace lockstep::data
