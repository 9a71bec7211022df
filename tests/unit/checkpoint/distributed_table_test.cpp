// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/distributed_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/error_of.h"

namespace lockstep::testing {
namespace {

namespace dcp = distributed_checkpoint;
using ::testing::HasSubstr;

dcp::Entry object_at(const Tuple& path) {
  dcp::Entry entry;
  entry.place = {.file = "__0_0.distcp", .offset = 0, .length = 10};
  entry.path = path;
  return entry;
}

dcp::Table table_of(const std::vector<Tuple>& paths) {
  dcp::Table table;
  for (const auto& path : paths)
    table.entries.emplace_back(std::to_string(table.entries.size()), object_at(path));
  return table;
}

std::string error_of_paths(const std::vector<Tuple>& paths) {
  return error_of([&] { dcp::parse_table(dcp::write_table(table_of(paths))); });
}

dcp::Table table_of_tensor(dcp::Sizes sizes, at::ScalarType dtype) {
  const dcp::Piece piece{.offsets = dcp::Sizes(sizes.size(), 0),
                         .sizes = sizes,
                         .place = {.file = "__0_0.distcp", .offset = 0, .length = 1000}};
  dcp::Entry entry;
  entry.is_tensor = true;
  entry.dtype = dtype;
  entry.sizes = std::move(sizes);
  entry.pieces = {piece};
  entry.path = Tuple{"w"};
  dcp::Table table;
  table.entries.emplace_back("w", std::move(entry));
  table.structure = Dict{{"w", "w"}};
  return table;
}

TEST(DistributedTable, IsReadAsItWasWritten) {
  const auto again = dcp::parse_table(dcp::write_table(table_of_tensor({3, 4}, at::kFloat)));
  ASSERT_EQ(again.entries.size(), 1U);
  EXPECT_EQ(again.entries[0].second.sizes, (dcp::Sizes{3, 4}));
  EXPECT_TRUE(equal(again.structure, Dict{{"w", "w"}}));
}

TEST(DistributedTable, ThatIsCutOrChangedAnywhereIsDamaged) {
  const auto text = dcp::write_table(table_of_tensor({3, 4}, at::kFloat));
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(dcp::parse_table(std::string_view(text).substr(0, length)), CheckpointError) << length;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 4, 7}) {
      auto changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_THROW(dcp::parse_table(changed), CheckpointError) << i;
    }
  }
  EXPECT_THAT(error_of([&] { dcp::parse_table(text + "x"); }), HasSubstr("behind its end"));
}

TEST(DistributedTable, PathsThatWouldMakeMemoryOfNothingAreRefused) {
  EXPECT_EQ(error_of_paths({{"a", 1}, {"a", 0}, {"b", 0, "c"}, {"b", 0, "d"}}), "");
  EXPECT_THAT(error_of_paths({{"a", 0}, {"a", 2}}), HasSubstr("list of 2 items has the indices 0 to 2"));
  EXPECT_THAT(error_of_paths({{"a", 1'000'000}}), HasSubstr("1000000"));
  EXPECT_THAT(error_of_paths({{"a", -1}}), HasSubstr("-1"));
  EXPECT_THAT(error_of_paths({{}}), HasSubstr("empty path"));
  Tuple deep;
  for (int i = 0; i < 100'000; ++i) deep.items.emplace_back("a");
  EXPECT_THAT(error_of_paths({deep}), HasSubstr("nested more than"));
}

// Pickles as Python writes them, with something else where a record belongs.
TEST(DistributedTable, WhatIsNoRecordIsRefused) {
  const auto text = [](const std::string& value) {
    return std::string("X") + static_cast<char>(value.size()) + std::string(3, '\0') + value;
  };
  const auto object = [](const std::string& name, const std::string& fields) {
    return "ctorch.distributed.checkpoint.metadata\n" + name + "\n)\x81}(" + fields + "ub";
  };
  const auto error_of_table = [&](const std::string& fields) {
    return error_of([&] { dcp::parse_table("\x80\x02" + object("Metadata", fields) + "."); });
  };
  const auto with_tensor = [&](const std::string& fields) {
    return text("state_dict_metadata") + "}(" + text("w") + object("TensorStorageMetadata", fields) + "u";
  };
  EXPECT_THAT(error_of_table(with_tensor(text("properties") + ")")), HasSubstr("no properties"));
  EXPECT_THAT(error_of_table(text("state_dict_metadata") + "}" + text("storage_data") + "}()Nu"),
              HasSubstr("() is no record"));
}

TEST(DistributedTable, SizesThatNoNumberHoldsAreRefused) {
  const auto error_of_sizes = [](dcp::Sizes sizes, at::ScalarType dtype) {
    return error_of([&] { dcp::parse_table(dcp::write_table(table_of_tensor(std::move(sizes), dtype))); });
  };
  constexpr std::int64_t large = std::int64_t{1} << 61;
  EXPECT_THAT(error_of_sizes({large}, at::kDouble), HasSubstr("too large"));
  EXPECT_THAT(error_of_sizes({large, 8}, at::kByte), HasSubstr("too large"));
  EXPECT_THAT(error_of_sizes({1000}, at::kDouble), HasSubstr("larger than its place"));
}

}  // namespace
}  // namespace lockstep::testing
