// SPDX-License-Identifier: BSD-3-Clause
#include "data/download/dataset_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<at::Tensor> load(const std::filesystem::path& root) {
  const auto dataset = tiny_dataset();
  return load_dataset_files(dataset, root, dataset.files, {});
}

TEST(DatasetFiles, AreFoundInTheFolderItself) {
  const TempFolder root;
  write_file(root / "images", tiny_images());
  write_gzip(root / "labels.gz", tiny_labels());
  const auto values = load(root.path());
  EXPECT_EQ(values[0].sizes(), at::IntArrayRef({2, 2, 3}));
  EXPECT_TRUE(at::equal(values[1], at::tensor({7, 3}, at::kByte)));
}

TEST(DatasetFiles, AreFoundInTheSubfolder) {
  const TempFolder root;
  write_file(root / "Tiny/raw/images", tiny_images());
  write_file(root / "Tiny/raw/labels", tiny_labels());
  EXPECT_EQ(load(root.path()).size(), 2U);
}

TEST(DatasetFiles, AnIntactGzipReplacesADamagedFile) {
  const TempFolder root;
  write_file(root / "images", tiny_images().substr(0, 18));
  write_gzip(root / "images.gz", tiny_images());
  write_file(root / "labels", tiny_labels());
  EXPECT_EQ(load(root.path())[0].numel(), 12);
}

TEST(DatasetFiles, TheErrorNamesAMissingFolderAndTheRemedy) {
  const TempFolder root;
  EXPECT_THAT([&] { load(root / "nowhere"); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr("Tiny was not found: no such folder: " + (root / "nowhere").string()),
                        HasSubstr("download = true"), HasSubstr("images, labels"))));
}

TEST(DatasetFiles, TheErrorNamesEveryBadFile) {
  const TempFolder root;
  auto other = tiny_images();
  other.back() = 'x';
  write_file(root / "images", other);
  EXPECT_THAT([&] { load(root.path()); },
              ThrowsMessage<DataError>(
                  AllOf(HasSubstr((root / "images").string() + ": is damaged or a different file"),
                        HasSubstr((root / "labels").string() + ": cannot be read: No such file"),
                        HasSubstr("download = true"))));
}

TEST(DatasetFiles, ATruncatedFileIsReportedAsCutShort) {
  const TempFolder root;
  write_file(root / "images", tiny_images());
  write_file(root / "labels", tiny_labels().substr(0, 9));
  EXPECT_THAT([&] { load(root.path()); }, ThrowsMessage<DataError>(HasSubstr("labels: is cut short")));
}

}  // namespace
}  // namespace lockstep::data
