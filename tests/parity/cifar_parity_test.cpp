// SPDX-License-Identifier: BSD-3-Clause
#include <filesystem>
#include <fstream>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/serialize/torch_file.h>

#include "data/cifar_files.h"
#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Python writes the files once for all the tests of this file.
class CifarParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TempFolder>();
    testing::run_python("parity/cifar_files.py", {.args = {folder_->path().string()}});
    expected_ = load(folder_->file("expected.pt"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  // The description of the dataset with the checksums of the files that Python wrote.
  static CifarFiles described(CifarFiles files) {
    const auto& md5 = expected_[files.name]["md5"];
    for (auto* form : {&files.python, &files.binary}) {
      form->archive.md5 = md5[form->archive.name].as_string();
      for (auto* split : {&form->train, &form->test}) {
        for (auto& file : *split) {
          if (!file.md5.empty()) file.md5 = md5[file.name].as_string();
        }
      }
    }
    return files;
  }

  static void expect_both_splits(const CifarFiles& files, const fs::path& root) {
    for (const bool train : {true, false}) {
      const auto batch = load_cifar(files, root, train, {}, {});
      const auto& expected = expected_[files.name][train ? "train" : "test"].as_items();
      EXPECT_TRUE(at::equal(batch.data, expected[0].as_tensor())) << root << train;
      EXPECT_TRUE(at::equal(batch.target, expected[1].as_tensor())) << root << train;
    }
  }

  static inline std::unique_ptr<testing::TempFolder> folder_;
  static inline Value expected_;
};

TEST_F(CifarParity, ReadsEveryPublishedForm) {
  for (const auto& files : {described(cifar10_files()), described(cifar100_files())}) {
    for (const auto* form : {"python", "binary", "python archive", "binary archive"}) {
      expect_both_splits(files, *folder_ / form);
    }
  }
}

TEST_F(CifarParity, TakesAnIntactFormInsteadOfADamagedOne) {
  const auto files = described(cifar10_files());
  const testing::TempFolder root;
  fs::copy(*folder_ / "python", root.path(), fs::copy_options::recursive);
  for (const auto* name : {"data_batch_3", "test_batch"}) {
    std::ofstream(root / "cifar-10-batches-py" / name, std::ios::app) << "more";
  }
  const auto refusal =
      lockstep::testing::error_of<DataError>([&] { load_cifar(files, root.path(), true, {}, {}); });
  EXPECT_THAT(refusal,
              HasSubstr("put this archive into " + root.path().string() + ": cifar-10-python.tar.gz"));
  fs::copy(*folder_ / "binary archive", root.path(), fs::copy_options::recursive);
  expect_both_splits(files, root.path());
}

TEST_F(CifarParity, DownloadsTheArchive) {
  const testing::TempFolder root;
  const auto files = described(cifar100_files());
  // A folder of a URL has no blank in its name.
  fs::create_directory_symlink(*folder_ / "python archive", *folder_ / "mirror");
  const auto batch =
      load_cifar(files, root.path(), false, {"file://" + (*folder_ / "mirror").string()}, {.download = true});
  EXPECT_EQ(batch.data.size(0), 3);
  EXPECT_TRUE(fs::exists(root / "cifar-100-python.tar.gz"));
}

}  // namespace
}  // namespace lockstep::data
