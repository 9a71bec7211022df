// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/affine.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <vector>

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
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/text.h"

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
  if (sampling.interpolation == InterpolationMode::NEAREST) {
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
  const std::int64_t mode = sampling.interpolation == InterpolationMode::NEAREST ? 1 : 0;
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

namespace {

// {-number, number} of one number.
Numbers symmetric(std::string_view transform, std::string_view argument, const Numbers& numbers) {
  if (numbers.size() == 1 && numbers.front() >= 0) return {0.0 - numbers.front(), numbers.front()};
  const bool pairs = numbers.size() == 2 || (numbers.size() == 4 && argument == "shear");
  bool ordered = pairs;
  for (std::size_t i = 0; ordered && i < numbers.size(); i += 2) ordered = numbers[i] <= numbers[i + 1];
  if (ordered) return numbers;
  throw_error<ArgumentError>(
      "{}: {} should be one number that is not negative or {{least, greatest}}, but it is {{{}}}", transform,
      argument, fmt::join(numbers, ", "));
}

Range degrees_range(std::string_view transform, const Numbers& degrees) {
  const auto both = symmetric(transform, "degrees", degrees);
  return {both[0], both[1]};
}

void check_sampling(std::string_view transform, InterpolationMode interpolation, const Numbers& center) {
  check_interpolation(transform, interpolation);
  if (!center.empty() && center.size() != 2) {
    throw_error<ArgumentError>("{}: center should be {{x, y}}, but it is {{{}}}", transform,
                               fmt::join(center, ", "));
  }
}

// Both are two numbers or none.
void check_translate_and_scale(const Numbers& translate, const Numbers& scale) {
  const bool parts = std::ranges::all_of(translate, [](double value) { return value >= 0 && value <= 1; });
  if (!translate.empty() && (translate.size() != 2 || !parts)) {
    throw_error<ArgumentError>("RandomAffine: translate should be two numbers in [0, 1], but it is {{{}}}",
                               fmt::join(translate, ", "));
  }
  if (!scale.empty() && (scale.size() != 2 || scale[0] <= 0 || scale[0] > scale[1])) {
    throw_error<ArgumentError>(
        "RandomAffine: scale should be {{least, greatest}} of positive numbers, but it is {{{}}}",
        fmt::join(scale, ", "));
  }
}

double draw_shift(double part, std::int64_t edge, const OptionalGenerator& generator) {
  const auto most = part * static_cast<double>(edge);
  return static_cast<double>(rounded(uniform({-most, most}, generator)));
}

Affine draw_affine(const Range& degrees, const RandomAffineOptions& options, const at::Tensor& image,
                   const OptionalGenerator& generator) {
  const auto& translate = options.translate;
  const auto& shear = options.shear;
  Affine drawn = {.angle = uniform(degrees, generator)};
  if (!translate.empty()) {
    drawn.translate[0] = draw_shift(translate[0], image.size(-1), generator);
    drawn.translate[1] = draw_shift(translate[1], image.size(-2), generator);
  }
  if (!options.scale.empty()) drawn.scale = uniform({options.scale[0], options.scale[1]}, generator);
  if (!shear.empty()) drawn.shear[0] = uniform({shear[0], shear[1]}, generator);
  if (shear.size() == 4) drawn.shear[1] = uniform({shear[2], shear[3]}, generator);
  return drawn;
}

// "name=text", or nothing without numbers.
void add(std::vector<std::string>& texts, std::string_view name, const Numbers& numbers,
         const std::string& text) {
  if (!numbers.empty()) texts.push_back(fmt::format("{}={}", name, text));
}

}  // namespace

RandomRotation::RandomRotation(Numbers degrees, const RandomRotationOptions& options)
    : degrees_(degrees_range("RandomRotation", degrees)), options_(options) {
  check_sampling("RandomRotation", options_.interpolation, options_.center);
}

at::Tensor RandomRotation::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_image("RandomRotation", image);
  return rotate(image, uniform(degrees_, generator), options_.expand,
                {.interpolation = options_.interpolation, .fill = options_.fill, .center = options_.center});
}

std::string RandomRotation::to_string() const {
  std::vector<std::string> texts = {
      fmt::format("degrees=[{}, {}]", float_text(degrees_.first), float_text(degrees_.second)),
      fmt::format("interpolation={}", text_of(options_.interpolation)),
      fmt::format("expand={}", bool_text(options_.expand))};
  add(texts, "fill", options_.fill, fill_text(options_.fill));
  add(texts, "center", options_.center, fmt::format("({})", joined(options_.center, number_text)));
  return fmt::format("RandomRotation({})", fmt::join(texts, ", "));
}

RandomAffine::RandomAffine(Numbers degrees, const RandomAffineOptions& options)
    : degrees_(degrees_range("RandomAffine", degrees)), options_(options) {
  check_sampling("RandomAffine", options_.interpolation, options_.center);
  check_translate_and_scale(options_.translate, options_.scale);
  if (!options_.shear.empty()) options_.shear = symmetric("RandomAffine", "shear", options_.shear);
}

at::Tensor RandomAffine::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_image("RandomAffine", image);
  return affine(image, draw_affine(degrees_, options_, image, generator),
                {.interpolation = options_.interpolation, .fill = options_.fill, .center = options_.center});
}

std::string RandomAffine::to_string() const {
  std::vector<std::string> texts = {
      fmt::format("degrees=[{}, {}]", float_text(degrees_.first), float_text(degrees_.second))};
  add(texts, "translate", options_.translate, fmt::format("({})", joined(options_.translate, float_text)));
  add(texts, "scale", options_.scale, fmt::format("({})", joined(options_.scale, float_text)));
  add(texts, "shear", options_.shear, fmt::format("[{}]", joined(options_.shear, float_text)));
  texts.push_back(fmt::format("interpolation={}", text_of(options_.interpolation)));
  add(texts, "fill", options_.fill, fill_text(options_.fill));
  add(texts, "center", options_.center, fmt::format("({})", joined(options_.center, number_text)));
  return fmt::format("RandomAffine({})", fmt::join(texts, ", "));
}

}  // namespace lockstep::transforms
