// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_bench/report.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

Row example() {
  return {.collective = "all-reduce",
          .bytes = 4096,
          .count = 1024,
          .dtype = "float32",
          .op = "sum",
          .backend = "gloo",
          .memory = "ordinary",
          .ranks = 2,
          .iterations = 30,
          .microseconds = 12.5,
          .p10 = 11.25,
          .p90 = 20,
          .algbw = 0.5,
          .busbw = 0.75,
          .wrong = 0};
}

std::string printed(Format format, const std::vector<Row>& rows) {
  std::ostringstream text;
  Report report(format, &text);
  report.begin(2);
  for (const auto& row : rows) report.add(row);
  report.finish();
  return text.str();
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST(Report, TableHasAColumnForEachWordOfItsHead) {
  const auto lines = split(printed(Format::table, {example()}), '\n');
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[2].size(), lines[3].size());
  EXPECT_THAT(words(lines[3]), ElementsAre("all-reduce", "4096", "1024", "float32", "sum", "gloo", "ordinary",
                                           "12.50", "11.25", "20.00", "0.50", "0.75", "0"));
}

TEST(Report, TableShowsWhatWasNotChecked) {
  auto row = example();
  row.wrong = -1;
  EXPECT_EQ(words(table_line(row)).back(), "n/a");
}

TEST(Report, CsvHasAsManyFieldsAsNames) {
  const auto lines = split(printed(Format::csv, {example()}), '\n');
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(std::ranges::count(lines[0], ','), std::ranges::count(lines[1], ','));
  EXPECT_EQ(lines[1],
            "all-reduce,4096,1024,float32,sum,gloo,ordinary,2,30,12.500,11.250,20.000,0.5000,0.7500,0");
}

TEST(Report, JsonIsOneArrayHoweverManyRows) {
  EXPECT_EQ(nlohmann::json::parse(printed(Format::json, {})), nlohmann::json::array());
  const auto all = nlohmann::json::parse(printed(Format::json, {example(), example()}));
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all[1]["backend"], "gloo");
  EXPECT_EQ(all[1]["microseconds"], 12.5);
  EXPECT_EQ(all[1]["wrong"], 0);
}

TEST(Report, RowsBetweenHostsHaveThePredictionOfTheirBackend) {
  std::vector<Row> rows;
  for (const std::string backend : {"gloo", "hierarchical"}) {
    for (const std::size_t bytes : {1'000U, 1'000'000U, 50'000'000U}) {
      auto row = example();
      row.backend = backend;
      row.bytes = bytes;
      const auto terms = all_reduce_terms(backend, bytes, {.hosts = 2, .ranks = 4});
      row.microseconds = (backend == "gloo" ? 30 : 20) * terms[0] + 0.008 * terms[1];
      rows.push_back(row);
    }
  }
  predict(rows, {.hosts = 2, .ranks = 4});
  std::ostringstream text;
  Report report(Format::json, &text, true);
  for (const auto& row : rows) report.add(row);
  report.finish();
  for (const auto& row : nlohmann::json::parse(text.str())) {
    EXPECT_NEAR(row["predicted"].get<double>(), row["microseconds"].get<double>(), 0.01);
    EXPECT_NEAR(row["model"]["alpha"].get<double>(), row["backend"] == "gloo" ? 30e-6 : 20e-6, 1e-7);
    EXPECT_NEAR(row["model"]["beta"].get<double>(), 8e-9, 1e-11);
  }
  const auto line = table_line(rows[0]) + prediction_columns(*rows[0].predicted, 100, Format::table);
  EXPECT_EQ(line.size(),
            split(table_header(4), '\n').back().size() + prediction_header(Format::table).size());
  EXPECT_EQ(std::ranges::count(prediction_header(Format::csv), ','),
            std::ranges::count(prediction_columns(*rows[0].predicted, 100, Format::csv), ','));
}

TEST(Report, PrintsNothingOnRanksWithoutASink) {
  Report report(Format::json, nullptr);
  report.begin(2);
  report.add(example());
  report.finish();
}

}  // namespace
}  // namespace lockstep::bench
