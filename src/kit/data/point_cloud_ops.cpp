// SPDX-License-Identifier: BSD-3-Clause
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_cross.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/where.h>

#include <lockstep/data/modelnet.h>

#include "base/throw_error.h"

namespace lockstep::data {
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
                         const transforms::OptionalGenerator& generator) {
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

}  // namespace lockstep::data
