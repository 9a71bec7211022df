// SPDX-License-Identifier: BSD-3-Clause
#include "base/caller_place.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

using std::source_location;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string line_of(const source_location& where) {
  return "caller_place_test.cpp:" + std::to_string(where.line());
}

struct Made {
  explicit Made(source_location from = source_location::current()) : where(from) {}
  source_location where;
};

TEST(Places, AnErrorNamesTheLineOfTheCaller) {
  const auto here = source_location::current();
  const CallerPlace place(here);
  EXPECT_EQ(message_of([] { throw_error<ArgumentError>("too {}", "large"); }),
            "too large (at " + line_of(here) + ")");
  EXPECT_EQ(message_of([] { throw DataError("damaged"); }), "damaged (at " + line_of(here) + ")");
}

TEST(Places, TheLineStandsBehindTheFirstLineOfTheText) {
  const auto here = source_location::current();
  EXPECT_EQ(with_line("ranks differ:\n  rank 0", here), "ranks differ (at " + line_of(here) + "):\n  rank 0");
  EXPECT_EQ(with_line("one\ntwo", here), "one (at " + line_of(here) + ")\ntwo");
}

TEST(Places, ATextThatNamesALineGetsNoOther) {
  const auto here = source_location::current();
  EXPECT_EQ(with_line("all_reduce at train.cpp:42 failed", here), "all_reduce at train.cpp:42 failed");
  EXPECT_EQ(with_line("train.h: 42 of 0.5:3", here), "train.h: 42 of 0.5:3 (at " + line_of(here) + ")");
}

TEST(Places, TheInnermostLineOfTheProgramCounts) {
  const auto outer = source_location::current();
  const auto inner = source_location::current();
  const CallerPlace first(outer);
  {
    const CallerPlace second(inner);
    const CallerPlace without_line(source_location{});
    const CallerPlace in_a_header(std::make_shared<Made>()->where);
    EXPECT_EQ(CallerPlace::current().line(), inner.line());
  }
  EXPECT_EQ(CallerPlace::current().line(), outer.line());
  std::thread([] { EXPECT_EQ(CallerPlace::current().line(), 0U); }).join();
}

TEST(Places, WithoutACallThereIsNone) {
  EXPECT_EQ(message_of([] { throw Error("late"); }), "late");
  EXPECT_EQ(CallerPlace::current().line(), 0U);
}

TEST(Details, AnErrorKeepsThemWhenItIsCopiedAndCaughtByItsBase) {
  const PeerLost lost("gone", {.ranks = {3, 1}, .group = "mesh_dp", .call = "barrier #2", .host = "node7"});
  const Error& error = PeerLost(lost);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_THAT(error.ranks(), testing::ElementsAre(3, 1));
  EXPECT_EQ(error.group() + ", " + error.call() + ", " + error.host(), "mesh_dp, barrier #2, node7");
  EXPECT_TRUE(error.file().empty());
  EXPECT_EQ(Error("late").rank(), std::nullopt);
}

TEST(Details, TheInnermostFileCountsUnlessTheErrorNamesOne) {
  const auto file_of = [](ErrorDetails details = {}) { return Error("damaged", std::move(details)).file(); };
  const ErrorFile folder("run");
  {
    const ErrorFile file("run/1.pt");
    EXPECT_EQ(file_of(), "run/1.pt");
    EXPECT_EQ(file_of({.file = "other.pt"}), "other.pt");
    std::thread([&] { EXPECT_EQ(file_of(), ""); }).join();
  }
  EXPECT_EQ(file_of(), "run");
}

TEST(Details, AMessageNamesItsReporterOnce) {
  const Reporter by{1, 4};
  EXPECT_EQ(message_of([&] { throw_error<Error>(by, "{} is late", "it"); }), "rank 1 of 4: it is late");
  EXPECT_EQ(message_of([&] { throw_error<Error>(by, "{}", "group: rank 1 of 4 is late"); }),
            "group: rank 1 of 4 is late");
}

TEST(Places, FilesOfTheProgramAreNoHeadersAndNotOurs) {
  const auto folder = std::filesystem::path(source_location::current().file_name()).parent_path();
  const auto root = folder.parent_path().parent_path().parent_path();
  EXPECT_TRUE(is_file_of_program("train.cpp"));
  EXPECT_TRUE(is_file_of_program("/home/a/src/train.cpp"));
  EXPECT_TRUE(is_file_of_program((root / "examples" / "mnist.cpp").string()));
  EXPECT_FALSE(is_file_of_program((root / "src" / "kit" / "data" / "loader.cpp").string()));
  EXPECT_FALSE(is_file_of_program("/usr/local/include/lockstep/data/loader.h"));
  EXPECT_FALSE(is_file_of_program("/usr/include/c++/12/bits/stl_construct.h"));
  EXPECT_FALSE(is_file_of_program("/opt/libtorch/include/torch/csrc/api/include/torch/nn/pimpl.h"));
  EXPECT_EQ(made_at(std::make_shared<Made>()->where), "");
  EXPECT_EQ(made_at(Made().where), ", made at " + line_of(source_location::current()));
}

}  // namespace
}  // namespace lockstep
