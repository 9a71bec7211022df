// SPDX-License-Identifier: BSD-3-Clause
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/data/files.h>
#include <lockstep/serialize/torch_file.h>

#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::data {
namespace {

// Python writes the files once for all the tests of this file.
class DatasetParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TempFolder>();
    testing::run_python("parity/dataset_cases.py", {.args = {folder_->path().string()}});
    expected_ = load(folder_->file("expected.pt"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  // Calls `check(path, value)` for each file of a kind and stops at the first failure.
  template <typename Check>
  void for_each_file(const std::string& kind, std::size_t least, Check check) {
    ASSERT_GE(expected_[kind].as_dict().size(), least);
    for (const auto& [name, value] : expected_[kind].as_dict()) {
      SCOPED_TRACE(name.as_string());
      check(*folder_ / name.as_string(), value);
      if (HasFatalFailure()) return;
    }
  }

 private:
  static inline std::unique_ptr<testing::TempFolder> folder_;
  static inline Value expected_;
};

void expect_same(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  ASSERT_EQ(found.sizes(), expected.sizes());
  ASSERT_EQ(found.is_contiguous(), expected.is_contiguous());
  if (found.numel() == 0) return;
  const auto as_bytes = [](const at::Tensor& tensor) { return tensor.contiguous().view(-1).view(at::kByte); };
  ASSERT_TRUE(at::equal(as_bytes(found), as_bytes(expected)));
}

TEST_F(DatasetParity, LoadsWhatNumpySaved) {
  for_each_file("npy", 200, [](const auto& file, const Value& value) {
    expect_same(load_numpy(file), value.as_tensor());
  });
}

TEST_F(DatasetParity, LoadsTheArraysThatNumpySavedInOneFile) {
  for_each_file("npz", 30, [](const auto& file, const Value& value) {
    const auto arrays = load_npz(file);
    ASSERT_EQ(arrays.size(), value.as_dict().size());
    for (const auto& [name, expected] : value.as_dict()) {
      expect_same(arrays.at(name.as_string()), expected.as_tensor());
    }
  });
}

TEST_F(DatasetParity, ReadsCsvFilesAsPythonDoes) {
  for_each_file("csv", 60, [](const auto& file, const Value& value) {
    const auto& classes = value["classes"].as_items();
    const CsvDataset data(file, {.target_columns = {value["target"].as_int()},
                                 .target_classes = !classes.empty(),
                                 .delimiter = value["delimiter"].as_string()[0],
                                 .header = value["header"].as_bool()});
    expect_same(data.data(), value["features"].as_tensor());
    expect_same(data.target(), value["targets"].as_tensor());
    ASSERT_EQ(data.classes().size(), classes.size());
    for (std::size_t i = 0; i < classes.size(); ++i) {
      ASSERT_EQ(data.classes()[i], classes[i].as_string());
    }
  });
}

TEST_F(DatasetParity, CutsTokensAsNanoGpt) {
  for_each_file("tokens", 60, [](const auto& file, const Value& value) {
    const TokenDataset tokens(file, {.dtype = value["wide"].as_bool() ? at::kUInt32 : at::kUInt16,
                                     .context_length = value["context_length"].as_int(),
                                     .stride = value["stride"].as_int()});
    ASSERT_EQ(tokens.size(), value["data"].as_tensor().size(0));
    const auto batch = tokens.get_batch(at::arange(tokens.size()));
    expect_same(batch.data, value["data"].as_tensor());
    expect_same(batch.target, value["target"].as_tensor());
  });
}

}  // namespace
}  // namespace lockstep::data
