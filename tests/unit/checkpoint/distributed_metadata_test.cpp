// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/distributed_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "checkpoint/write_metadata.h"
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

dcp::Metadata metadata_of(const std::vector<Tuple>& paths) {
  dcp::Metadata metadata;
  for (const auto& path : paths)
    metadata.entries.emplace_back(std::to_string(metadata.entries.size()), object_at(path));
  return metadata;
}

std::string error_of_paths(const std::vector<Tuple>& paths) {
  return error_of([&] { dcp::parse_metadata(dcp::write_metadata(metadata_of(paths))); });
}

dcp::Metadata metadata_of_tensor(dcp::Sizes sizes, at::ScalarType dtype) {
  const dcp::Piece piece{.offsets = dcp::Sizes(sizes.size(), 0),
                         .sizes = sizes,
                         .place = {.file = "__0_0.distcp", .offset = 0, .length = 1000}};
  dcp::Entry entry;
  entry.is_tensor = true;
  entry.dtype = dtype;
  entry.sizes = std::move(sizes);
  entry.pieces = {piece};
  entry.path = Tuple{"w"};
  dcp::Metadata metadata;
  metadata.entries.emplace_back("w", std::move(entry));
  metadata.structure = Dict{{"w", "w"}};
  return metadata;
}

TEST(DistributedMetadata, RoundTrips) {
  const auto again = dcp::parse_metadata(dcp::write_metadata(metadata_of_tensor({3, 4}, at::kFloat)));
  ASSERT_EQ(again.entries.size(), 1U);
  EXPECT_EQ(again.entries[0].second.sizes, (dcp::Sizes{3, 4}));
  EXPECT_TRUE(equal(again.structure, Dict{{"w", "w"}}));
}

TEST(DistributedMetadata, AnyTruncationOrChangeIsDetected) {
  const auto text = dcp::write_metadata(metadata_of_tensor({3, 4}, at::kFloat));
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(dcp::parse_metadata(std::string_view(text).substr(0, length)), CheckpointError) << length;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 4, 7}) {
      auto changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_THROW(dcp::parse_metadata(changed), CheckpointError) << i;
    }
  }
  EXPECT_THAT(error_of([&] { dcp::parse_metadata(text + "x"); }), HasSubstr("data after its end"));
}

TEST(DistributedMetadata, PathsThatWouldWasteMemoryAreRejected) {
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
TEST(DistributedMetadata, OtherPicklesAreRejected) {
  const auto text = [](const std::string& value) {
    return std::string("X") + static_cast<char>(value.size()) + std::string(3, '\0') + value;
  };
  const auto object = [](const std::string& name, const std::string& fields) {
    return "ctorch.distributed.checkpoint.metadata\n" + name + "\n)\x81}(" + fields + "ub";
  };
  const auto error_of_metadata = [&](const std::string& fields) {
    return error_of([&] { dcp::parse_metadata("\x80\x02" + object("Metadata", fields) + "."); });
  };
  const auto with_tensor = [&](const std::string& fields) {
    return text("state_dict_metadata") + "}(" + text("w") + object("TensorStorageMetadata", fields) + "u";
  };
  EXPECT_THAT(error_of_metadata(with_tensor(text("properties") + ")")), HasSubstr("no properties"));
  EXPECT_THAT(error_of_metadata(text("state_dict_metadata") + "}" + text("storage_data") + "}()Nu"),
              HasSubstr("() is not a record"));
}

TEST(DistributedMetadata, OverflowingSizesAreRejected) {
  const auto error_of_sizes = [](dcp::Sizes sizes, at::ScalarType dtype) {
    return error_of(
        [&] { dcp::parse_metadata(dcp::write_metadata(metadata_of_tensor(std::move(sizes), dtype))); });
  };
  constexpr std::int64_t large = std::int64_t{1} << 61;
  EXPECT_THAT(error_of_sizes({large}, at::kDouble), HasSubstr("too large"));
  EXPECT_THAT(error_of_sizes({large, 8}, at::kByte), HasSubstr("too large"));
  EXPECT_THAT(error_of_sizes({1000}, at::kDouble), HasSubstr("larger than its space"));
}

}  // namespace
}  // namespace lockstep::testing
