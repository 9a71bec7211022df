// SPDX-License-Identifier: BSD-3-Clause
// examples/06_image_folder with two ranks: the result depends neither on the workers nor on an interruption.
#include <gtest/gtest.h>

#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

class ImageFolderExample : public ::testing::Test {
 protected:
  // The last line, with the number of steps and the sum of the parameters.
  std::string result_of(std::vector<std::string> flags) const {
    std::vector<std::string> arguments = {"run",        "--nproc-per-node",
                                          "2",          IMAGE_FOLDER_EXAMPLE,
                                          "--folder",   folder_.file("pictures"),
                                          "--pictures", "100",
                                          "--interval", "3"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    LauncherProcess launcher(arguments);
    EXPECT_EQ(launcher.finish(), 0) << launcher.out() << launcher.err();
    const auto line = launcher.out().rfind("done after");
    return line == std::string::npos ? launcher.out() : launcher.out().substr(line);
  }

  TempFolder folder_{};
};

TEST_F(ImageFolderExample, TheNumberOfWorkersDoesNotChangeTheResult) {
  const auto expected = result_of({"--epochs", "1", "--workers", "0"});
  EXPECT_EQ(expected.find("done after 5 steps"), 0U) << expected;
  EXPECT_EQ(result_of({"--epochs", "1", "--workers", "1"}), expected);
  EXPECT_EQ(result_of({"--epochs", "1", "--workers", "4"}), expected);
}

TEST_F(ImageFolderExample, ARunResumedInTheMiddleOfAnEpochEndsWithTheSameParameters) {
  const auto expected = result_of({"--epochs", "2"});
  const auto checkpoints = folder_.file("checkpoints");
  result_of({"--epochs", "1", "--checkpoints", checkpoints});  // the newest checkpoint is of step 3 of 5
  EXPECT_EQ(result_of({"--epochs", "2", "--checkpoints", checkpoints, "--resume"}), expected);
}

}  // namespace
}  // namespace lockstep::testing
