// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/vision.h>

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

// Three images of the test split.
void write_test_split(const TempFolder& root, const std::string& folder, std::uint32_t side, char label) {
  write_file(root / (folder + "/t10k-images-idx3-ubyte"),
             idx_bytes({3, side, side}, std::string(3 * side * side, '\xff')));
  write_file(root / (folder + "/t10k-labels-idx1-ubyte"), idx_bytes({3}, std::string("\1\2") + label));
}

TEST(MNIST, ItsRelativesReadDecompressedFilesWhereTorchvisionHasThem) {
  const TempFolder root;
  write_test_split(root, "FashionMNIST/raw", 28, '\11');
  write_test_split(root, "KMNIST/raw", 28, '\3');
  const FashionMNIST fashion(root.path(), {.train = false});
  const auto batch = fashion.get_batch(at::tensor({2}, at::kLong));
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({1, 1, 28, 28}));
  EXPECT_EQ(batch.data.min().item<float>(), 1.0F);
  EXPECT_EQ(FashionMNIST::classes().at(static_cast<std::size_t>(batch.target.item<int>())), "Ankle boot");
  EXPECT_TRUE(at::equal(KMNIST(root.path(), {.train = false}).targets(), at::tensor({1, 2, 3}, at::kLong)));
}

TEST(MNIST, ItsRelativesRefuseOtherFiles) {
  const TempFolder root;
  write_test_split(root, "side", 27, '\3');
  write_test_split(root, "label", 28, '\12');
  EXPECT_THAT([&] { KMNIST(root / "side", {.train = false}); },
              ThrowsMessage<DataError>(HasSubstr("are not images of 28 x 28 bytes")));
  EXPECT_THAT([&] { KMNIST(root / "label", {.train = false}); },
              ThrowsMessage<DataError>(HasSubstr("have labels other than 0 to 9")));
  write_gzip(root / "gzip/t10k-images-idx3-ubyte.gz", idx_bytes({1, 28, 28}, std::string(28 * 28, 'x')));
  EXPECT_THAT([&] { FashionMNIST(root / "gzip", {.train = false}); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr("its MD5 is"), HasSubstr("bef4ecab320f06d8554ea6380940ec79"))));
}

}  // namespace
}  // namespace lockstep::data
