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
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::write_file;

TEST(TokenDataset, CutsWindowsWhoseTargetsAreOneTokenFurther) {
  const TempFolder folder;
  write_file(folder / "tokens.bin", std::string("\0\0\1\0\2\0\3\0\4\0\xff\xff", 12));
  const TokenDataset tokens(folder / "tokens.bin", {.context_length = 2});
  ASSERT_EQ(tokens.size(), 2);
  const auto batch = tokens.get_batch(at::tensor({1, 0}, at::kLong));
  EXPECT_TRUE(at::equal(batch.data, torch::tensor({{2, 3}, {0, 1}}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.target, torch::tensor({{3, 4}, {1, 2}}, at::kLong)));
  const TokenDataset every(folder / "tokens.bin", {.context_length = 2, .stride = 1});
  ASSERT_EQ(every.size(), 4);
  EXPECT_TRUE(
      at::equal(every.get_batch(at::tensor({3}, at::kLong)).target, torch::tensor({{4, 65535}}, at::kLong)));
  EXPECT_THROW(every.get_batch(at::tensor({4}, at::kLong)), ArgumentError);
}

TEST(TokenDataset, RefusesOtherFiles) {
  const TempFolder folder;
  write_file(folder / "tokens.bin", std::string(6, 'x'));
  const auto message = [&](const TokenDatasetOptions& options) {
    return error_of<DataError>([&] { TokenDataset(folder / "tokens.bin", options); });
  };
  EXPECT_THAT(message({.dtype = at::kUInt32, .context_length = 1}),
              HasSubstr("6 bytes are not a whole number of UInt32 tokens"));
  EXPECT_THAT(message({.context_length = 3}), HasSubstr("has 3 tokens, fewer than the 3 + 1 of a sample"));
  EXPECT_EQ(message({.context_length = 2}), "");
  EXPECT_THAT(error_of<DataError>([] { TokenDataset("/nowhere/tokens.bin"); }), HasSubstr("No such file"));
}

TEST(TokenDataset, RejectsInvalidOptions) {
  EXPECT_THROW(TokenDataset("tokens.bin", {.dtype = at::kLong}), ArgumentError);
  EXPECT_THROW(TokenDataset("tokens.bin", {.context_length = 0}), ArgumentError);
  EXPECT_THROW(TokenDataset("tokens.bin", {.stride = 0}), ArgumentError);
}

}  // namespace
}  // namespace lockstep::data
