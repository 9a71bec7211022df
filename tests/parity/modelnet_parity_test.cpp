// SPDX-License-Identifier: BSD-3-Clause
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/data/vision.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t kPublishedPoints = 64;  // of the clouds that Python writes
constexpr std::int64_t kSampledPoints = 50;

std::optional<at::Generator> generator_of(std::int64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
}

// Python writes the files once for all the tests of this file.
class ModelNetParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::TempFolder>();
    testing::run_python("parity/modelnet_files.py", {.args = {folder_->path().string()}});
    expected_ = load(folder_->file("expected.pt"));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static inline std::unique_ptr<testing::TempFolder> folder_;
  static inline Value expected_;
};

TEST_F(ModelNetParity, ReadsTheCloudsThatDgcnnReads) {
  const auto published = *folder_ / "published";
  for (const auto& root : {published, published / "modelnet40_ply_hdf5_2048"}) {
    for (const bool train : {true, false}) {
      for (const std::int64_t num_points : {std::int64_t{1}, std::int64_t{17}, kPublishedPoints}) {
        const ModelNet40 clouds(root, {.train = train, .num_points = num_points});
        const auto& expected = expected_["published"][train ? "train" : "test"].as_items();
        const auto batch = clouds.get_batch(at::arange(clouds.size()));
        EXPECT_TRUE(at::equal(batch.data, expected[0].as_tensor().narrow(1, 0, num_points)));
        EXPECT_TRUE(at::equal(batch.target, expected[1].as_tensor()));
        EXPECT_TRUE(at::equal(clouds.targets(), expected[1].as_tensor()));
      }
    }
  }
}

TEST_F(ModelNetParity, NamesTheClasses) {
  const ModelNet40 clouds(*folder_ / "published", {.num_points = 1});
  std::vector<std::string> expected;
  for (const auto& name : expected_["classes"].as_items()) expected.push_back(name.as_string());
  EXPECT_EQ(clouds.classes(), expected);
}

TEST_F(ModelNetParity, NamesFileAndDataSetOfDamage) {
  ::testing::internal::CaptureStderr();
  for (const auto& [name, message] : expected_["damaged"].as_dict()) {
    const auto root = *folder_ / "damaged" / name.as_string();
    const auto error = error_of<DataError>([&] { ModelNet40(root, {.num_points = kPublishedPoints}); });
    EXPECT_THAT(error, HasSubstr(root.string() + "/" + message.as_string())) << name.as_string();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "libhdf5 printed its errors";
}

TEST_F(ModelNetParity, ReadsMeshesInAllTheWaysInWhichTheyAreWritten) {
  EXPECT_GE(expected_["off"].as_dict().size(), 60U);
  for (const auto& [name, value] : expected_["off"].as_dict()) {
    const auto mesh = read_off(*folder_ / name.as_string());
    ASSERT_TRUE(at::equal(mesh.vertices, value["vertices"].as_tensor())) << name.as_string();
    ASSERT_TRUE(at::equal(mesh.triangles, value["triangles"].as_tensor())) << name.as_string();
  }
}

TEST_F(ModelNetParity, SamplesThePointsOfPyTorchGeometric) {
  int compared = 0;
  for (const auto& [name, value] : expected_["off"].as_dict()) {
    const auto mesh = read_off(*folder_ / name.as_string());
    if (value["points"].is<None>()) {
      EXPECT_THROW(sample_points(mesh, kSampledPoints), ArgumentError);
      continue;
    }
    const auto points = sample_points(mesh, kSampledPoints, generator_of(value["seed"].as_int()));
    ASSERT_TRUE(at::equal(points, value["points"].as_tensor())) << name.as_string();
    ++compared;
  }
  EXPECT_GE(compared, 50);
}

TEST_F(ModelNetParity, AugmentsWithTheDocumentedDraws) {
  std::int64_t seed = 0;
  for (const auto& each : expected_["augmented"].as_items()) {
    const auto& points = each["points"].as_tensor();
    const auto generator = generator_of(seed++);
    const auto augmented = shuffle_points(translate_point_cloud(points, generator), generator);
    ASSERT_TRUE(at::equal(augmented, each["augmented"].as_tensor()));
    ASSERT_TRUE(at::allclose(normalize_point_cloud(points), each["normalized"].as_tensor(), 1e-5, 1e-6));
  }
  EXPECT_GE(seed, 100);
}

}  // namespace
}  // namespace lockstep::data
