// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_cross.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <lockstep/data/images.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/vision.h>

#include "base/caller_place.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "data/bytes.h"
#include "data/point_clouds.h"
#include "data/sample_batches.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";
constexpr std::size_t kLongestWord = 40;  // characters of a word in a message
constexpr double kLeastVertexBytes = 6;   // "0 0 0\n"
constexpr double kLeastFaceBytes = 2;     // "1\n"

// The lines of an OFF file that have words, word by word.
class OffLines {
 public:
  OffLines(std::string_view text, const std::string& file) : left_(text), file_(file) {}

  void next_line(std::string_view expected) {
    do {
      if (left_.empty()) throw_error<DataError>("{}: ends where {} should follow", file_, expected);
      const auto line = left_.substr(0, left_.find('\n'));
      left_.remove_prefix(std::min(line.size() + 1, left_.size()));
      words_ = line.substr(0, line.find('#'));
      ++number_;
      skip_blanks();
    } while (words_.empty());
  }

  bool at_line_end() const { return words_.empty(); }
  std::size_t bytes_left() const { return left_.size(); }

  // Removes `start` from the line if the line begins with it.
  bool skip(std::string_view start) {
    if (!words_.starts_with(start)) return false;
    words_.remove_prefix(start.size());
    skip_blanks();
    return true;
  }

  float coordinate() {
    const auto value = number<double>("a coordinate");
    if (!(std::abs(value) <= std::numeric_limits<float>::max())) {
      fail(fmt::format("the coordinate {} is not a number within float32", value));
    }
    return static_cast<float>(value);
  }

  std::int64_t integer(std::string_view what, std::int64_t end) {
    const auto value = number<std::int64_t>(what);
    if (value < 0 || value >= end)
      fail(fmt::format("{} is {}; it should be in 0 .. {}", what, value, end - 1));
    return value;
  }

  [[noreturn]] void fail(std::string_view problem) const {
    throw_error<DataError>("{}: line {}: {}", file_, number_, problem);
  }

 private:
  void skip_blanks() { words_.remove_prefix(std::min(words_.find_first_not_of(kBlanks), words_.size())); }

  template <typename Number>
  Number number(std::string_view what) {
    const auto word = words_.substr(0, words_.find_first_of(kBlanks));
    if (word.empty()) fail(fmt::format("{} is missing", what));
    words_.remove_prefix(word.size());
    skip_blanks();
    const auto digits = word.substr(word.starts_with('+') && word.size() > 1 && word[1] != '-' ? 1 : 0);
    if (const auto value = parse_number<Number>(digits)) return *value;
    fail(fmt::format("\"{}\" is not {}", word.substr(0, kLongestWord), what));
  }

  std::string_view left_;
  const std::string& file_;
  std::string_view words_{};
  std::int64_t number_ = 0;
};

struct OffCounts {
  std::int64_t vertices;
  std::int64_t faces;
};

OffCounts read_counts(OffLines& lines) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  lines.next_line("the header OFF");
  if (!lines.skip("OFF"))
    lines.fail("the header is not OFF; variants such as COFF and NOFF are not supported");
  if (lines.at_line_end()) lines.next_line("the number of vertices");
  const auto vertices = lines.integer("the number of vertices", kMost);
  const auto faces = lines.integer("the number of faces", kMost);
  // The last line may end without a line break.
  const auto bytes = static_cast<double>(lines.bytes_left()) + 1;
  if (static_cast<double>(vertices) * kLeastVertexBytes + static_cast<double>(faces) * kLeastFaceBytes >
      bytes) {
    lines.fail(
        fmt::format("the header states {} vertices and {} faces, more than the {} bytes after it can hold",
                    vertices, faces, lines.bytes_left()));
  }
  return {.vertices = vertices, .faces = faces};
}

std::vector<float> read_vertices(OffLines& lines, std::int64_t count) {
  std::vector<float> vertices;
  vertices.reserve(static_cast<std::size_t>(3 * count));
  for (std::int64_t i = 0; i < count; ++i) {
    lines.next_line(fmt::format("vertex {} of {}", i, count));
    for (int axis = 0; axis < 3; ++axis) vertices.push_back(lines.coordinate());
    if (!lines.at_line_end()) lines.fail("a vertex should have 3 coordinates");
  }
  return vertices;
}

std::vector<std::int64_t> read_triangles(OffLines& lines, const OffCounts& counts) {
  std::vector<std::int64_t> triangles;
  triangles.reserve(static_cast<std::size_t>(3 * counts.faces));
  for (std::int64_t i = 0; i < counts.faces; ++i) {
    lines.next_line(fmt::format("face {} of {}", i, counts.faces));
    const auto corners = lines.integer("the number of vertices of a face", std::numeric_limits<int>::max());
    std::int64_t first = 0;
    std::int64_t previous = 0;
    for (std::int64_t k = 0; k < corners; ++k) {
      const auto corner = lines.integer("the vertex of a face", counts.vertices);
      if (k == 0) first = corner;
      if (k >= 2) triangles.insert(triangles.end(), {first, previous, corner});
      previous = corner;
    }
  }
  return triangles;
}

}  // namespace

Mesh read_off(const std::filesystem::path& file) {
  const ErrorFile about(file);
  const auto name = file.string();
  const auto bytes = read_file(file);
  OffLines lines(as_text(bytes), name);
  const auto counts = read_counts(lines);
  const auto vertices = read_vertices(lines, counts.vertices);
  const auto triangles = read_triangles(lines, counts);
  return {.vertices = at::tensor(vertices, at::kFloat).view({-1, 3}),
          .triangles = at::tensor(triangles, at::kLong).view({-1, 3})};
}

namespace {

constexpr std::int64_t kMostTriangles = std::int64_t{1} << 24;  // torch.multinomial takes no more

bool is_matrix_of(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == dtype && tensor.dim() == 2 &&
         tensor.size(1) == 3;
}

void check_mesh(const Mesh& mesh) {
  if (!is_matrix_of(mesh.vertices, at::kFloat) || !is_matrix_of(mesh.triangles, at::kLong)) {
    throw ArgumentError(
        "sample_points: vertices should be float32 [n, 3] and triangles int64 [m, 3], both on the CPU");
  }
  const auto count = mesh.triangles.size(0);
  if (count < 1 || count > kMostTriangles) {
    throw_error<ArgumentError>("sample_points: the mesh has {} triangles; possible are 1 to {}", count,
                               kMostTriangles);
  }
  if (mesh.triangles.lt(0).logical_or(mesh.triangles.ge(mesh.vertices.size(0))).any().item<bool>()) {
    throw_error<ArgumentError>("sample_points: a triangle has a vertex that is not one of the {} vertices",
                               mesh.vertices.size(0));
  }
}

void check_points(std::string_view function, const at::Tensor& points) {
  if (is_matrix_of(points, at::kFloat) && points.size(0) > 0) return;
  throw_error<ArgumentError>("{}: points should be float32 [n, 3] on the CPU", function);
}

}  // namespace

at::Tensor sample_points(const Mesh& mesh, std::int64_t num_points,
                         const transforms::OptionalGenerator& generator, std::source_location where) {
  const CallerPlace place(where);
  check_mesh(mesh);
  if (num_points < 1) {
    throw_error<ArgumentError>("sample_points: num_points is {}; it should be positive", num_points);
  }
  // Within [-1, 1], so that no area overflows.
  const auto scale = mesh.vertices.abs().max();
  const auto corners = mesh.vertices.div(scale).index_select(0, mesh.triangles.flatten()).view({-1, 3, 3});
  const auto origins = corners.select(1, 0);
  const auto first_edges = corners.select(1, 1) - origins;
  const auto second_edges = corners.select(1, 2) - origins;
  const auto areas = at::linalg_cross(first_edges, second_edges).norm(2, 1) / 2;
  const auto area = areas.sum();
  if (!(area.item<float>() > 0)) throw ArgumentError("sample_points: the mesh has no area");

  const auto chosen = at::multinomial(areas / area, num_points, /*replacement=*/true, generator);
  const auto drawn = at::rand({num_points, 2}, generator, at::kFloat);
  // The other half of the parallelogram is folded into the triangle.
  const auto weights = at::where(drawn.sum(-1, /*keepdim=*/true) > 1, 1 - drawn, drawn);
  auto points = origins.index_select(0, chosen);
  points.add_(weights.narrow(1, 0, 1) * first_edges.index_select(0, chosen));
  points.add_(weights.narrow(1, 1, 1) * second_edges.index_select(0, chosen));
  return points.mul_(scale);
}

at::Tensor normalize_point_cloud(const at::Tensor& points) {
  check_points("normalize_point_cloud", points);
  const auto centered = points - points.mean(0, /*keepdim=*/true);
  const auto radius = centered.square().sum(1).sqrt().max();
  return radius.item<float>() > 0 ? centered / radius : centered;
}

at::Tensor translate_point_cloud(const at::Tensor& points, const transforms::OptionalGenerator& generator) {
  check_points("translate_point_cloud", points);
  const auto scale = at::empty({3}).uniform_(2.0 / 3, 3.0 / 2, generator);
  const auto shift = at::empty({3}).uniform_(-0.2, 0.2, generator);
  return points * scale + shift;
}

at::Tensor shuffle_points(const at::Tensor& points, const transforms::OptionalGenerator& generator) {
  check_points("shuffle_points", points);
  return points.index_select(0, at::randperm(points.size(0), generator, at::kLong));
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kHdf5Folder = "modelnet40_ply_hdf5_2048";
constexpr const char* kOffFolder = "ModelNet40";

// The published folder in `root`, or `root` itself; empty when neither has the form.
fs::path folder_with(const fs::path& root, const char* name, bool (*has_form)(const fs::path&)) {
  for (const auto& folder : {root / name, root}) {
    if (has_form(folder)) return folder;
  }
  return {};
}

PointClouds open_clouds(const fs::path& root, const ModelNet40Options& options) {
  const ErrorFile about(root);
  if (options.num_points < 1) {
    throw_error<ArgumentError>("ModelNet40: num_points is {}; it should be positive", options.num_points);
  }
  const auto hdf5 = folder_with(root, kHdf5Folder, has_modelnet_hdf5);
  const auto off = folder_with(root, kOffFolder, has_modelnet_off);
  if (!hdf5.empty() && !off.empty()) {
    throw_error<DataError>(
        "{}: has ModelNet40 twice, HDF5 files in {} and OFF meshes in {}; give one of them", root.string(),
        hdf5.string(), off.string());
  }
  if (!hdf5.empty()) return read_modelnet_hdf5(hdf5, options);
  if (!off.empty()) return list_modelnet_off(off, options);
  throw_error<DataError>(
      "{}: is not and does not contain {} (train_files.txt, ply_data_*.h5) or {} "
      "(<class>/<train|test>/*.off); "
      "unpack https://shapenet.cs.stanford.edu/media/{}.zip or https://modelnet.cs.princeton.edu/{}.zip "
      "there",
      root.string(), kHdf5Folder, kOffFolder, kHdf5Folder, kOffFolder);
}

}  // namespace

ModelNet40::ModelNet40(const fs::path& root, const ModelNet40Options& options, std::source_location where)
    : clouds_((CallerPlace(where), std::make_shared<const PointClouds>(open_clouds(root, options)))),
      options_(options) {}

std::int64_t ModelNet40::size() const { return clouds_->targets.size(0); }

const std::vector<std::string>& ModelNet40::classes() const { return clouds_->classes; }

const at::Tensor& ModelNet40::targets() const { return clouds_->targets; }

Batch ModelNet40::get_batch(const at::Tensor& indices, std::source_location where) const {
  const CallerPlace place(where);
  check_indices(indices, size());
  if (indices.size(0) == 0) {
    return {.data = at::empty({0, options_.num_points, 3}), .target = at::empty({0}, at::kLong)};
  }
  const auto chosen = indices.accessor<std::int64_t, 1>();
  std::vector<at::Tensor> samples;
  std::vector<at::Tensor> targets;
  for (std::int64_t i = 0; i < chosen.size(0); ++i) {
    const auto generator = sample_generator(chosen[i]);
    const auto points = clouds_->cloud(chosen[i], generator);
    samples.push_back(options_.transform ? (*options_.transform)(points, generator) : points);
    const auto target = clouds_->targets[chosen[i]];
    targets.push_back(options_.target_transform ? options_.target_transform(target) : target);
  }
  return {.data = stack_samples("ModelNet40", samples), .target = stack_samples("target_transform", targets)};
}

}  // namespace lockstep::data
