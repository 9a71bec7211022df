// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_bench/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "lockstep_bench/kinds.h"
#include "support/error_of.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Options parse(const Words& words) { return parse_options(Tool::lockstep_bench, words); }

std::string complaint(const Words& words, Tool tool = Tool::lockstep_bench) {
  return lockstep::testing::error_of<ArgumentError>([&] { parse_options(tool, words); });
}

TEST(BenchOptions, HaveDefaults) {
  const auto options = parse({"all-reduce"});
  EXPECT_THAT(options.collectives, ElementsAre("all-reduce"));
  EXPECT_THAT(options.backends, ElementsAre("shm", "gloo"));
  EXPECT_THAT(options.memories, ElementsAre("ordinary", "zero-copy"));
  EXPECT_FALSE(options.memory_given);
  EXPECT_EQ(options.sizes.front(), 1024U);
  EXPECT_EQ(options.sizes.back(), 256U << 20U);
  EXPECT_EQ(options.iterations, 0);
  EXPECT_TRUE(options.bind);
  EXPECT_TRUE(options.check);
  EXPECT_EQ(options.format, Format::table);
}

TEST(BenchOptions, AreParsedFromTheCommandLine) {
  const auto options = parse({"broadcast,barrier", "--backend", "gloo", "--sizes=1K,2K", "--dtype",
                              "bfloat16,int64", "--op", "max", "--memory", "ordinary", "--iterations", "7",
                              "--warmup", "2", "--no-bind", "--no-check", "--csv"});
  EXPECT_THAT(options.collectives, ElementsAre("broadcast", "barrier"));
  EXPECT_THAT(options.backends, ElementsAre("gloo"));
  EXPECT_THAT(options.sizes, ElementsAre(1024, 2048));
  EXPECT_THAT(options.dtypes, ElementsAre("bfloat16", "int64"));
  EXPECT_EQ(options.op, "max");
  EXPECT_TRUE(options.memory_given);
  EXPECT_EQ(options.iterations, 7);
  EXPECT_EQ(options.warmup, 2);
  EXPECT_FALSE(options.bind);
  EXPECT_FALSE(options.check);
  EXPECT_EQ(options.format, Format::csv);
}

TEST(BenchOptions, TakesUnderscoresForHyphens) {
  EXPECT_THAT(parse({"all_reduce,reduce_scatter"}).collectives, ElementsAre("all-reduce", "reduce-scatter"));
  EXPECT_THAT(complaint({"all_reduce_x"}), HasSubstr("\"all_reduce_x\" is not a collective"));
}

TEST(BenchOptions, AllMeansEveryCollective) { EXPECT_EQ(parse({"all"}).collectives.size(), kinds().size()); }

TEST(BenchOptions, NameUnknownValues) {
  EXPECT_THAT(complaint({}), HasSubstr("collective"));
  EXPECT_THAT(complaint({"all-reduse"}), AllOf(HasSubstr("all-reduse"), HasSubstr("all-to-all")));
  EXPECT_THAT(complaint({"all-reduce", "--dtype", "float33"}),
              AllOf(HasSubstr("float33"), HasSubstr("bfloat16")));
  EXPECT_THAT(complaint({"all-reduce", "--memory", "fast"}), HasSubstr("\"fast\""));
  EXPECT_THAT(complaint({"all-reduce", "--sizes", "1Q"}), HasSubstr("\"1Q\""));
  EXPECT_THAT(complaint({"all-reduce", "--op", "xor"}), HasSubstr("xor"));
  EXPECT_THAT(complaint({"all-reduce", "--backend", ""}), HasSubstr("--backend"));
  EXPECT_THAT(complaint({"all-reduce", "--iterations", "-1"}), HasSubstr("--iterations"));
  EXPECT_THAT(complaint({"all-reduce", "--csv", "--json"}), HasSubstr("--json"));
  EXPECT_THAT(complaint({"all-reduce", "--bogus"}), HasSubstr("--bogus"));
}

TEST(BenchOptions, NodesHaveDefaultsOfTheirOwn) {
  const auto options = parse({"all-reduce", "--nodes"});
  EXPECT_THAT(options.backends, ElementsAre("hierarchical", "gloo"));
  EXPECT_THAT(options.memories, ElementsAre("ordinary"));
  EXPECT_THAT(parse({"all-reduce", "--nodes", "--backend", "gloo"}).backends, ElementsAre("gloo"));
  EXPECT_THAT(complaint({"broadcast", "--nodes"}), HasSubstr("all-reduce"));
  EXPECT_THAT(complaint({"all-reduce", "--nodes", "--backend", "shm"}), HasSubstr("no cost model"));
}

TEST(BenchOptions, RejectTheMemoryLimitWithOtherCollectives) {
  EXPECT_EQ(complaint({"all-reduce", "--backend", "shm,memory"}), "");
  EXPECT_EQ(complaint({"all", "--backend", "memory", "--dtype", "float32,float64"}), "");
  EXPECT_THAT(complaint({"broadcast", "--backend", "memory"}), HasSubstr("--backend memory"));
  EXPECT_THAT(complaint({"all-reduce", "--backend", "memory", "--dtype", "int32"}),
              HasSubstr("--backend memory"));
  EXPECT_THAT(complaint({"all-reduce", "--backend", "memory", "--op", "max"}), HasSubstr("--backend memory"));
}

TEST(BenchOptions, MpiProgramHasOnlyItsOwnOptions) {
  EXPECT_EQ(complaint({"all-reduce", "--sizes", "1K", "--iterations", "3", "--json"}, Tool::mpi_collectives),
            "");
  EXPECT_THAT(complaint({"all-reduce", "--backend", "shm"}, Tool::mpi_collectives), HasSubstr("--backend"));
  EXPECT_THAT(complaint({"all-reduce", "--dtype", "int32"}, Tool::mpi_collectives), HasSubstr("--dtype"));
}

TEST(BenchOptions, HaveHelp) {
  try {
    parse({"--help"});
    ADD_FAILURE() << "no help";
  } catch (const HelpWanted& help) {
    EXPECT_THAT(help.text, AllOf(HasSubstr("--sizes"), HasSubstr("--nproc"), HasSubstr("nccl-tests")));
  }
}

}  // namespace
}  // namespace lockstep::bench
