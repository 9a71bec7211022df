// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/mnist.h>

#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(MNIST, ExplainsHowToGetMissingFiles) {
  const TempFolder root;
  EXPECT_THAT([&] { MNIST(root / "none"); },
              ThrowsMessage<DataError>(AllOf(
                  HasSubstr("no such folder: " + (root / "none").string()), HasSubstr("download = true"),
                  HasSubstr("train-images-idx3-ubyte"), HasSubstr("t10k-labels-idx1-ubyte"))));
}

TEST(MNIST, AnotherDatasetOfTheSameFormatIsRejected) {
  const TempFolder root;
  write_file(root / "t10k-images-idx3-ubyte", tiny_images());
  write_file(root / "t10k-labels-idx1-ubyte", tiny_labels());
  EXPECT_THAT(
      [&] { MNIST(root.path(), {.train = false}); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("t10k-images-idx3-ubyte: is damaged or a different file"),
                                     HasSubstr("t10k-labels-idx1-ubyte: is damaged or a different file"))));
}

TEST(MNIST, UsesOnlyTheGivenSources) {
  const TempFolder root;
  const TempFolder empty;
  const auto url = "file://" + empty.path().string();
  EXPECT_THAT(
      [&] { MNIST(root.path(), {.download = true, .sources = {url}}); },
      ThrowsMessage<DataError>(AllOf(HasSubstr(url + "/train-images-idx3-ubyte.gz"), Not(HasSubstr("npm")))));
}

}  // namespace
}  // namespace lockstep::data
