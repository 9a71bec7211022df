// SPDX-License-Identifier: BSD-3-Clause
// ModelNet40 as meshes; the HDF5 form is tested beside h5py.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/vision.h>

#include "support/error_of.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::write_file;

// A square of area 4 in the plane z = 0, and a triangle of area 1 in the plane z = 3.
constexpr const char* kSquareAndTriangle =
    "OFF\n7 2 0\n0 0 0\n2 0 0\n2 2 0\n0 2 0\n0 0 3\n1 0 3\n0 2 3\n4 0 1 2 3\n3 4 5 6\n";

class ModelNetTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    const auto file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    write_file(file, text);
    return file;
  }
  std::string error_of_mesh(const std::string& text) const {
    const auto file = write("mesh.off", text);
    return error_of<DataError>([&] { read_off(file); });
  }
  // Two classes with two training meshes each.
  void write_meshes() const {
    for (const auto* name : {"bed/train/bed_0002.off", "bed/train/bed_0001.off", "airplane/train/b.off",
                             "airplane/train/a.off", "bed/test/bed_0003.off"}) {
      write(name, kSquareAndTriangle);
    }
  }
  const std::filesystem::path& root() const { return folder_.path(); }

  TempFolder folder_;
};

TEST_F(ModelNetTest, AMeshThatIsDamagedIsRefusedWithItsLine) {
  EXPECT_THAT(error_of_mesh(""), HasSubstr("mesh.off: ends where the header OFF should follow"));
  EXPECT_THAT(error_of_mesh("COFF\n1 0 0\n"), HasSubstr("mesh.off: line 1: the header is not OFF"));
  EXPECT_THAT(error_of_mesh("OFF BINARY\n"), HasSubstr("line 1: \"BINARY\" is not the number of vertices"));
  EXPECT_THAT(error_of_mesh("OFF\n1\n"), HasSubstr("line 2: the number of faces is missing"));
  EXPECT_THAT(error_of_mesh("OFF\n-1 0 0\n"), HasSubstr("line 2: the number of vertices is -1"));
  EXPECT_THAT(error_of_mesh("OFF\n9223372036854775806 9223372036854775806 0\n0 0 0\n"),
              HasSubstr("more than the 6 bytes after it can hold"));
  EXPECT_THAT(error_of_mesh("OFF\n2 0 0\n0 0.00000\n0 0 0\n"), HasSubstr("line 3: a coordinate is missing"));
  EXPECT_THAT(error_of_mesh("OFF\n1 0 0\n0 0 0 0\n"),
              HasSubstr("line 3: a vertex should have 3 coordinates"));
  EXPECT_THAT(error_of_mesh("OFF\n1 0 0\n0 nan 0\n"),
              HasSubstr("line 3: the coordinate nan is not a number"));
  EXPECT_THAT(error_of_mesh("OFF\n1 0 0\n0 1e39 0\n"), HasSubstr("line 3: the coordinate 1e+39 is not"));
  EXPECT_THAT(error_of_mesh("OFF\n1 0 0\n0 1,5 0\n"), HasSubstr("line 3: \"1,5\" is not a coordinate"));
  EXPECT_THAT(error_of_mesh("OFF\n2 0 0\n#\n0 0 0.000000\n"),
              HasSubstr("ends where vertex 1 of 2 should follow"));
  EXPECT_THAT(error_of_mesh("OFF\n1 1 0\n0 0 0\n3 0 0 1\n"),
              HasSubstr("line 4: the vertex of a face is 1; it should be in 0 .. 0"));
  EXPECT_THAT(error_of_mesh("OFF\n1 1 0\n0 0 0\n3 0 0\n"),
              HasSubstr("line 4: the vertex of a face is missing"));
  EXPECT_THAT(error_of_mesh("OFF\n1 2 0\n0 0 0\n3 0 0 0\n"),
              HasSubstr("ends where face 1 of 2 should follow"));
  EXPECT_THAT(error_of<DataError>([&] { read_off(root() / "none.off"); }),
              HasSubstr("none.off: cannot be opened"));
}

TEST_F(ModelNetTest, PointsLieOnTheSurfaceInProportionToItsArea) {
  constexpr std::int64_t kPoints = 10'000;
  const auto mesh = read_off(write("mesh.off", kSquareAndTriangle));
  torch::manual_seed(5);
  const auto points = sample_points(mesh, kPoints);
  ASSERT_EQ(points.sizes(), (std::vector<std::int64_t>{kPoints, 3}));
  const auto x = points.select(1, 0);
  const auto y = points.select(1, 1);
  const auto on_square = points.select(1, 2).eq(0);
  const auto on_triangle = points.select(1, 2).eq(3);
  EXPECT_TRUE(on_square.logical_or(on_triangle).all().item<bool>());
  EXPECT_TRUE(x.ge(0).logical_and(x.le(2)).logical_and(y.ge(0)).logical_and(y.le(2)).all().item<bool>());
  EXPECT_TRUE((x + y / 2).masked_select(on_triangle).le(1.00001).all().item<bool>());
  // 1 in 5 points, with a standard deviation of 40; a quarter of the square's in each quarter of it.
  EXPECT_NEAR(static_cast<double>(on_triangle.sum().item<std::int64_t>()), 2000, 160);
  const auto in_corner = on_square.logical_and(x.lt(1)).logical_and(y.gt(1));
  EXPECT_NEAR(static_cast<double>(in_corner.sum().item<std::int64_t>()), 2000, 160);
}

TEST_F(ModelNetTest, SamplingRefusesWhatHasNoSurface) {
  const auto vertices = at::tensor({0.F, 0.F, 0.F, 1.F, 0.F, 0.F}).view({2, 3});
  const auto triangle = [](std::int64_t last) {
    return at::tensor({std::int64_t{0}, std::int64_t{1}, last}).view({1, 3});
  };
  EXPECT_THAT(error_of([&] { sample_points({vertices, triangle(1)}, 5); }), HasSubstr("has no area"));
  EXPECT_THAT(error_of([&] { sample_points({vertices.mul(0), triangle(1)}, 5); }), HasSubstr("has no area"));
  EXPECT_THAT(error_of([&] {
                sample_points({vertices, triangle(2)}, 5);
              }),
              HasSubstr("not one of the 2 vertices"));
  EXPECT_THAT(error_of([&] {
                sample_points({vertices, triangle(-1)}, 5);
              }),
              HasSubstr("not one of the 2 vertices"));
  EXPECT_THAT(error_of([&] {
                sample_points({vertices, triangle(1).narrow(0, 0, 0)}, 5);
              }),
              HasSubstr("has 0 triangles"));
  EXPECT_THAT(error_of([&] { sample_points({vertices, triangle(1)}, 0); }), HasSubstr("num_points is 0"));
  EXPECT_THROW(sample_points({vertices.to(at::kDouble), triangle(1)}, 5), ArgumentError);
  EXPECT_THROW(shuffle_points(vertices.view(-1)), ArgumentError);
}

TEST_F(ModelNetTest, ListsMeshesByClassAndName) {
  write_meshes();
  write("bed/train/._bed_0001.off", "a note of macOS");
  write("bed/train/notes.txt", "");
  std::filesystem::create_directories(root() / "__MACOSX");
  const ModelNet40 train(root(), {.num_points = 4});
  EXPECT_THAT(train.classes(), ElementsAre("airplane", "bed"));
  EXPECT_TRUE(at::equal(train.targets(), at::tensor({0, 0, 1, 1}, at::kLong)));
  EXPECT_EQ(ModelNet40(root(), {.train = false}).size(), 1);
  const auto batch = train.get_batch(at::tensor({3, 0}, at::kLong));
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{2, 4, 3}));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({1, 0}, at::kLong)));
  EXPECT_EQ(train.get_batch(at::empty({0}, at::kLong)).data.sizes(), (std::vector<std::int64_t>{0, 4, 3}));
  EXPECT_THROW(train.get_batch(at::tensor({4}, at::kLong)), ArgumentError);
}

TEST_F(ModelNetTest, BatchesAreEqualForAnyNumberOfWorkers) {
  write_meshes();
  const auto augment = [](const auto& points, const auto& generator) {
    return shuffle_points(translate_point_cloud(points, generator), generator);
  };
  const ModelNet40 train(root(), {.num_points = 8,
                                  .transform = augment,
                                  .target_transform = [](std::int64_t target) { return target + 10; }});
  std::vector<Batch> expected;
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(train, {.batch_size = 3, .num_workers = workers, .augmentation_seed = 7});
    std::size_t i = 0;
    for (auto& batch : loader) {
      if (workers == 0) expected.push_back(batch);
      ASSERT_TRUE(at::equal(batch.data, expected.at(i).data));
      ASSERT_TRUE(at::equal(batch.target, expected.at(i).target));
      ++i;
    }
    EXPECT_EQ(i, 2U);
  }
  EXPECT_TRUE(at::equal(expected[0].target, at::tensor({10, 10, 11}, at::kLong)));
  // The meshes are the same; the points differ.
  EXPECT_FALSE(at::equal(expected[0].data[0], expected[0].data[1]));
}

TEST_F(ModelNetTest, AFunctionIsATransform) {
  write_meshes();
  const ModelNet40 train(root(), {.num_points = 8, .transform = normalize_point_cloud});
  EXPECT_LE(train.get_batch(at::arange(4)).data.norm(2, -1).max().item<float>(), 1.00001);
}

TEST_F(ModelNetTest, AFolderWithoutOneFormIsRefused) {
  const auto refusal = [this](ModelNet40Options options = {}) {
    return error_of([&] { ModelNet40(root(), options); });
  };
  EXPECT_THAT(refusal(),
              HasSubstr("unpack https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip"));
  write("ModelNet40/bed/train/bed_0001.off", "OFF\n1 0 0\n0 0 0\n");
  EXPECT_THAT(refusal({.train = false}), HasSubstr("no class has OFF files in its folder test"));
  EXPECT_THAT(refusal({.num_points = 0}), HasSubstr("num_points is 0"));
  EXPECT_THAT(error_of<DataError>([&] { ModelNet40(root()).get_batch(at::arange(1)); }),
              HasSubstr("bed_0001.off: sample_points: the mesh has 0 triangles"));
  write("modelnet40_ply_hdf5_2048/ply_data_test0.h5", "");
  EXPECT_THAT(refusal(), HasSubstr("has ModelNet40 twice"));
  std::filesystem::remove_all(root() / "ModelNet40");
  EXPECT_THAT(refusal(), HasSubstr("modelnet40_ply_hdf5_2048: has no training files"));
}

}  // namespace
}  // namespace lockstep::data
