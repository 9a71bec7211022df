// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rot90.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/geometry_ops.h"

namespace lockstep::transforms {
namespace {

using Matrix = std::array<double, 6>;

double radians(double degrees) { return degrees * (std::numbers::pi / 180.0); }

// From pixels of the result to those of the image, both relative to the middle of the image.
Matrix inverse_matrix(const std::array<double, 2>& center, const Affine& parameters) {
  const auto rotation = radians(parameters.angle);
  const auto shear_x = radians(parameters.shear[0]);
  const auto shear_y = radians(parameters.shear[1]);
  const auto a = std::cos(rotation - shear_y) / std::cos(shear_y);
  const auto b = -(a * std::tan(shear_x) + std::sin(rotation));
  const auto c = std::sin(rotation - shear_y) / std::cos(shear_y);
  const auto d = std::cos(rotation) - c * std::tan(shear_x);
  const auto x = center[0] + parameters.translate[0];
  const auto y = center[1] + parameters.translate[1];
  const auto scale = parameters.scale;
  Matrix matrix = {d / scale, -b / scale, 0.0, -c / scale, a / scale, 0.0};
  matrix[2] += center[0] - matrix[0] * x - matrix[1] * y;
  matrix[5] += center[1] - matrix[3] * x - matrix[4] * y;
  return matrix;
}

std::array<double, 2> relative_center(const at::Tensor& image, const Numbers& center) {
  if (center.empty()) return {0, 0};
  return {center[0] - static_cast<double>(image.size(-1)) * 0.5,
          center[1] - static_cast<double>(image.size(-2)) * 0.5};
}

at::Tensor positions(std::int64_t count, const at::Device& device) {
  const auto last = (static_cast<double>(count) - 1.0) * 0.5;
  return at::linspace(-last, last, count, at::TensorOptions(at::kFloat).device(device));
}

// Where grid_sampler() looks for each pixel of a result of that size.
at::Tensor affine_grid(const at::Tensor& image, const Matrix& matrix, std::int64_t height,
                       std::int64_t width) {
  const auto dtype = image.is_floating_point() ? image.scalar_type() : at::kFloat;
  const auto options = image.options().dtype(dtype);
  auto theta = at::tensor(at::ArrayRef<double>(matrix), options).reshape({1, 2, 3});
  auto base = at::empty({1, height, width, 3}, options);
  base.select(-1, 0).copy_(positions(width, image.device()));
  base.select(-1, 1).copy_(positions(height, image.device()).unsqueeze_(-1));
  base.select(-1, 2).fill_(1);
  const std::array<double, 2> halves = {0.5 * static_cast<double>(image.size(-1)),
                                        0.5 * static_cast<double>(image.size(-2))};
  const auto rescaled = theta.transpose(1, 2).div_(at::tensor(at::ArrayRef<double>(halves), options));
  return base.view({1, height * width, 3}).bmm(rescaled).view({1, height, width, 2});
}

// `sampled` [n, channels + 1, height, width]: the last channel is the part of each pixel that lies inside.
at::Tensor filled(const at::Tensor& sampled, const Sampling& sampling) {
  const auto channels = sampled.size(1) - 1;
  auto images = sampled.narrow(1, 0, channels);
  const auto inside = sampled.narrow(1, channels, 1).expand_as(images);
  const auto fill = at::tensor(at::ArrayRef<double>(sampling.fill), images.options()).view({1, -1, 1, 1});
  if (sampling.interpolation == InterpolationMode::nearest) {
    return at::where(inside.lt(0.5), fill.expand_as(images), images);
  }
  return images.sub_(fill).mul_(inside).add_(fill);
}

at::Tensor sample(const at::Tensor& image, at::Tensor grid, const Sampling& sampling) {
  constexpr std::int64_t kZeros = 0;
  auto sizes = image.sizes().vec();
  sizes[sizes.size() - 2] = grid.size(1);
  sizes[sizes.size() - 1] = grid.size(2);
  if (image.numel() == 0) return image.new_empty(sizes);
  auto images = image.reshape({-1, image.size(-3), image.size(-2), image.size(-1)}).to(grid.scalar_type());
  const auto count = images.size(0);
  if (count > 1) grid = grid.expand({count, -1, -1, -1});
  if (!sampling.fill.empty()) {
    images = at::cat({images, at::ones({count, 1, image.size(-2), image.size(-1)}, images.options())}, 1);
  }
  const std::int64_t mode = sampling.interpolation == InterpolationMode::nearest ? 1 : 0;
  images = at::grid_sampler(images, grid, mode, kZeros, /*align_corners=*/false);
  if (!sampling.fill.empty()) images = filled(images, sampling);
  if (!image.is_floating_point()) images.round_();
  return images.to(image.scalar_type()).reshape(sizes);
}

// Height and width that hold the whole rotated image. Floats, rounded to 1e-4, as in torchvision.
std::pair<std::int64_t, std::int64_t> expanded_size(const at::Tensor& image, const Matrix& matrix) {
  constexpr double kTolerance = 1e-4;
  const auto x = 0.5 * static_cast<double>(image.size(-1));
  const auto y = 0.5 * static_cast<double>(image.size(-2));
  const auto corners = at::tensor({-x, -y, 1.0, -x, y, 1.0, x, y, 1.0, x, -y, 1.0}, at::kFloat).view({4, 3});
  const auto theta = at::tensor(at::ArrayRef<double>(matrix), at::kFloat).view({2, 3});
  const auto [least, most] = at::aminmax(at::matmul(corners, theta.t()), 0);
  const auto halves = at::tensor({x, y}, at::kFloat);
  const auto coarse = [&](const at::Tensor& values) {
    return values.add(halves).mul_(1.0 / kTolerance).trunc_().mul_(kTolerance);
  };
  const auto size = coarse(most).ceil_().sub_(coarse(least).floor_());
  return {static_cast<std::int64_t>(size[1].item<float>()), static_cast<std::int64_t>(size[0].item<float>())};
}

void check_fill(const at::Tensor& image, const Numbers& fill) {
  if (fill.size() <= 1 || static_cast<std::int64_t>(fill.size()) == image.size(-3)) return;
  throw_error<ArgumentError>("fill has {} values for an image of {}; give one, or one per channel",
                             fill.size(), shape_text(image));
}

// Python's `angle % 360`.
double in_circle(double angle) {
  const auto rest = std::fmod(angle, 360.0);
  return rest < 0 ? rest + 360.0 : rest;
}

}  // namespace

at::Tensor affine(const at::Tensor& image, const Affine& parameters, const Sampling& sampling) {
  check_fill(image, sampling.fill);
  const auto matrix = inverse_matrix(relative_center(image, sampling.center), parameters);
  return sample(image, affine_grid(image, matrix, image.size(-2), image.size(-1)), sampling);
}

at::Tensor rotate(const at::Tensor& image, double angle, bool expand, const Sampling& sampling) {
  check_fill(image, sampling.fill);
  angle = in_circle(angle);
  const bool quarter_fits = expand || image.size(-1) == image.size(-2);
  if (sampling.center.empty()) {
    if (angle == 0) return image.clone();
    if (angle == 180) return at::rot90(image, 2, {-2, -1});
    if (angle == 90 && quarter_fits) return at::rot90(image, 1, {-2, -1});
    if (angle == 270 && quarter_fits) return at::rot90(image, 3, {-2, -1});
  }
  const auto matrix = inverse_matrix(relative_center(image, sampling.center), {.angle = -angle});
  const auto [height, width] =
      expand ? expanded_size(image, matrix) : std::pair(image.size(-2), image.size(-1));
  return sample(image, affine_grid(image, matrix, height, width), sampling);
}

}  // namespace lockstep::transforms
