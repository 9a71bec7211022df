// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "lockstep_bench/options.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Sizes, DoubleFromFirstToLast) {
  EXPECT_THAT(parse_sizes("1K:8K"), ElementsAre(1024, 2048, 4096, 8192));
  EXPECT_THAT(parse_sizes("3:13"), ElementsAre(3, 6, 12));
  EXPECT_THAT(parse_sizes("1M:1M"), ElementsAre(1 << 20));
}

TEST(Sizes, GrowByAGivenFactor) {
  EXPECT_THAT(parse_sizes("1K:256M:64"), ElementsAre(1 << 10, 1 << 16, 1 << 22, 1 << 28));
  EXPECT_THAT(parse_sizes("10:1000:10"), ElementsAre(10, 100, 1000));
}

TEST(Sizes, KeepTheOrderOfAList) {
  EXPECT_THAT(parse_sizes("64K,1K,7"), ElementsAre(65536, 1024, 7));
  EXPECT_THAT(parse_sizes("1k:4k,1g"), ElementsAre(1024, 2048, 4096, std::size_t{1} << 30U));
}

TEST(Sizes, StopBeforeTheNumberOverflows) {
  EXPECT_THAT(parse_sizes("4611686018427387904:9223372036854775807"), ElementsAre(std::size_t{1} << 62U));
}

TEST(Sizes, InvalidSizesAreQuoted) {
  for (const auto* text : {"", "x", "0", "1T", "1KB", "-1", "1.5K", "1,,2", "99999999999G", "1:", ":2",
                           "1:2:3:4", "4:2", "1:2:1", "1:2:x", "1:2:1K"}) {
    try {
      parse_sizes(text);
      ADD_FAILURE() << "took \"" << text << '"';
    } catch (const ArgumentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("--sizes: "));
      EXPECT_THAT(error.what(), HasSubstr("\""));
    }
  }
}

}  // namespace
}  // namespace lockstep::bench
