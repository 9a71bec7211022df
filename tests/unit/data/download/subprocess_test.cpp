// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "data/download/download.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Deadline& soon() {
  static const Deadline deadline(std::chrono::seconds(60));
  return deadline;
}

TEST(RunCommand, RunsInTheFolder) {
  const TempFolder folder;
  run_in_folder(folder.path(), {"sh", "-c", "echo hello > made-here"}, soon());
  EXPECT_EQ(bytes_of_file(folder / "made-here"), "hello\n");
}

TEST(RunCommand, ShowsTheLastOutputOfAFailedCommand) {
  EXPECT_THAT(
      [] {
        run_in_folder("/", {"sh", "-c", "echo first; echo last words >&2; exit 7"}, soon());
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("exit code 7"), HasSubstr("last words"))));
  EXPECT_THAT(
      [] {
        run_in_folder("/", {"sh", "-c", "kill -9 $$"}, soon());
      },
      ThrowsMessage<DataError>(HasSubstr("signal 9")));
}

TEST(RunCommand, NamesAMissingCommand) {
  EXPECT_THAT(
      [] {
        run_in_folder("/", {"lockstep-no-such-command", "x"}, soon());
      },
      ThrowsMessage<DataError>(HasSubstr("is lockstep-no-such-command installed?")));
}

TEST(RunCommand, StopsACommandAtTheDeadline) {
  const Deadline now(std::chrono::milliseconds(0));
  EXPECT_THAT(
      [&] {
        run_in_folder("/", {"sleep", "600"}, now);
      },
      ThrowsMessage<DataError>(HasSubstr("not complete at the deadline")));
}

}  // namespace
}  // namespace lockstep::data
