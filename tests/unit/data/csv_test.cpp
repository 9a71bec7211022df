// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/files.h>

#include "fixtures.h"
#include "support/error_of.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::write_file;

CsvDataset read_csv(const std::string& text, const CsvDatasetOptions& options = {}) {
  const TempFolder folder;
  write_file(folder / "x.csv", text);
  return CsvDataset(folder / "x.csv", options);
}

std::string refusal(const std::string& text, const CsvDatasetOptions& options = {}) {
  return error_of([&] { read_csv(text, options); });
}

TEST(CsvDataset, TakesTheLastColumnAsTarget) {
  const auto data = read_csv("a,b,y\n1,2,3\n\n4,5,6");
  EXPECT_TRUE(at::equal(data.data(), torch::tensor({{1., 2.}, {4., 5.}}, at::kFloat)));
  EXPECT_TRUE(at::equal(data.target(), at::tensor({3., 6.}, at::kFloat)));
  EXPECT_THAT(data.feature_names(), ElementsAre("a", "b"));
}

TEST(CsvDataset, TakesColumnsByNameAndNumber) {
  const auto data = read_csv("a,b,c,d\r\n1,2,3,4\r\n", {.target_columns = {"d", std::int64_t{0}}});
  EXPECT_TRUE(at::equal(data.target(), torch::tensor({{4., 1.}}, at::kFloat)));
  EXPECT_THAT(data.feature_names(), ElementsAre("b", "c"));
}

TEST(CsvDataset, SortsClassNames) {
  const auto data = read_csv("kind;x\n\"a \"\"b\"\"\nc\";1\nZ;2\nZ;3\n",
                             {.target_columns = {"kind"}, .target_classes = true, .delimiter = ';'});
  EXPECT_THAT(data.classes(), ElementsAre("Z", "a \"b\"\nc"));
  EXPECT_TRUE(at::equal(data.target(), at::tensor({1, 0, 0}, at::kLong)));
}

TEST(CsvDataset, ReadsCompressedFiles) {
  const TempFolder folder;
  testing::write_gzip(folder / "x.csv.gz", "1,2\n");
  EXPECT_EQ(CsvDataset(folder / "x.csv.gz", {.header = false}).size(), 1);
}

TEST(CsvDataset, NamesLineAndColumnOfWrongFields) {
  EXPECT_THAT(refusal("a,b\n1,2\n,2\n"), HasSubstr("x.csv: line 3, column 0 (\"a\"): the field is empty"));
  EXPECT_THAT(refusal("1,2\n1, \n", {.header = false}), HasSubstr("line 2, column 1: the field is empty"));
  EXPECT_THAT(refusal("a,b\n1,2x\n"), HasSubstr("column 1 (\"b\"): \"2x\" is not a number"));
  EXPECT_THAT(refusal("a,b\n1,+-2\n"), HasSubstr("\"+-2\" is not a number"));
  EXPECT_THAT(refusal("a,b\n1,1e39\n"), HasSubstr("1e39 is out of the range of float32"));
  EXPECT_THAT(refusal("a,b\n1,-1e400\n"), HasSubstr("-1e400 is out of the range of float32"));
  EXPECT_THAT(refusal("\"a\n\n\",b\n1,x\n"), HasSubstr("line 4, column 1"));
  EXPECT_THAT(refusal("a,b\n1,\n", {.target_classes = true}), HasSubstr("the class is empty"));
}

TEST(CsvDataset, RefusesDamagedFiles) {
  EXPECT_THAT(refusal("a,b\n1,2\n1,2,3\n"), HasSubstr("line 3: has 3 fields, but the rows before it have 2"));
  EXPECT_THAT(refusal("a,b\n1\n"), HasSubstr("line 2: has 1 fields"));
  EXPECT_THAT(refusal("a,b\n1,\"2\n3,4\n"), HasSubstr("line 2: a quote is not closed"));
  EXPECT_THAT(refusal("a,b\n\"1\"0,2\n"), HasSubstr("line 2: text follows a closing quote"));
  EXPECT_THAT(refusal("a,b\n"), HasSubstr("has no rows"));
  EXPECT_THAT(refusal("\n\r\n"), HasSubstr("has no rows"));
  EXPECT_THAT(error_of<DataError>([] { CsvDataset("/nowhere/x.csv"); }), HasSubstr("/nowhere/x.csv"));
  EXPECT_THAT([] { CsvDataset("/nowhere/x.csv"); },
              ::testing::Throws<DataError>(::testing::Property(&Error::file, "/nowhere/x.csv")));
}

TEST(CsvDataset, RejectsInvalidOptions) {
  const std::string text = "a,b,b\n1,2,3\n";
  EXPECT_THAT(refusal(text, {.target_columns = {"c"}}), HasSubstr("has no column \"c\""));
  EXPECT_THAT(refusal(text, {.target_columns = {"a"}, .header = false}),
              HasSubstr("columns have numbers only"));
  EXPECT_THAT(refusal(text, {.target_columns = {"b"}}), HasSubstr("several columns \"b\""));
  EXPECT_THAT(refusal(text, {.target_columns = {std::int64_t{3}}}), HasSubstr("has no column 3"));
  EXPECT_THAT(refusal(text, {.target_columns = {std::int64_t{-4}}}), HasSubstr("has no column -4"));
  EXPECT_THAT(refusal(text, {.target_columns = {std::int64_t{2}, std::int64_t{-1}}}),
              HasSubstr("a target twice"));
  EXPECT_THAT(refusal(text, {.target_columns = {}}), HasSubstr("needs a target"));
  EXPECT_THAT(refusal("a\n1\n"), HasSubstr("needs a target and a feature"));
  EXPECT_THAT(refusal(text, {.delimiter = '"'}), HasSubstr("delimiter"));
}

}  // namespace
}  // namespace lockstep::data
