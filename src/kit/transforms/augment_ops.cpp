// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/augment_ops.h"

#include <cmath>
#include <numbers>

#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/rsub.h>

#include "transforms/color_ops.h"

namespace lockstep::transforms {
namespace {

double of_line(double first, double last, std::int64_t bin, std::int64_t bins) {
  return at::linspace(first, last, bins, at::kFloat)[bin].item<float>();
}

double posterize_bits(std::int64_t bin, std::int64_t bins, double range) {
  const auto lost = at::arange(bins).div(static_cast<double>(bins - 1) / range);
  return at::rsub(lost, 8).round()[bin].item<float>();
}

double degrees(double radians) { return radians * (180.0 / std::numbers::pi); }

at::Tensor shear(const at::Tensor& image, double magnitude, std::size_t axis, Sampling sampling) {
  sampling.center = {0, 0};
  Affine parameters;
  parameters.shear.at(axis) = degrees(std::atan(magnitude));
  return affine(image, parameters, sampling);
}

at::Tensor translate(const at::Tensor& image, double magnitude, std::size_t axis, const Sampling& sampling) {
  Affine parameters;
  parameters.translate.at(axis) = std::trunc(magnitude);
  return affine(image, parameters, sampling);
}

}  // namespace

AugmentSpace narrow_space(const at::Tensor& image) {
  constexpr double kPart = 150.0 / 331.0;
  return {.shear = 0.3,
          .translate_x = kPart * static_cast<double>(image.size(-1)),
          .translate_y = kPart * static_cast<double>(image.size(-2)),
          .rotate = 30,
          .color = 0.9,
          .posterize = 4};
}

AugmentSpace wide_space() {
  return {.shear = 0.99, .translate_x = 32, .translate_y = 32, .rotate = 135, .color = 0.99, .posterize = 6};
}

bool has_magnitude(AugmentOp op) { return op != AugmentOp::identity && op <= AugmentOp::solarize; }

bool is_signed(AugmentOp op) { return op >= AugmentOp::shear_x && op <= AugmentOp::sharpness; }

double magnitude_of(AugmentOp op, std::int64_t bin, std::int64_t bins, const AugmentSpace& space) {
  switch (op) {
    case AugmentOp::shear_x:
    case AugmentOp::shear_y:
      return of_line(0, space.shear, bin, bins);
    case AugmentOp::translate_x:
      return of_line(0, space.translate_x, bin, bins);
    case AugmentOp::translate_y:
      return of_line(0, space.translate_y, bin, bins);
    case AugmentOp::rotate:
      return of_line(0, space.rotate, bin, bins);
    case AugmentOp::posterize:
      return posterize_bits(bin, bins, space.posterize);
    case AugmentOp::solarize:
      return of_line(1, 0, bin, bins);
    default:
      return of_line(0, space.color, bin, bins);
  }
}

at::Tensor augment(const at::Tensor& image, AugmentOp op, double magnitude, const Sampling& sampling) {
  switch (op) {
    case AugmentOp::identity:
      return image;
    case AugmentOp::shear_x:
      return shear(image, magnitude, 0, sampling);
    case AugmentOp::shear_y:
      return shear(image, magnitude, 1, sampling);
    case AugmentOp::translate_x:
      return translate(image, magnitude, 0, sampling);
    case AugmentOp::translate_y:
      return translate(image, magnitude, 1, sampling);
    case AugmentOp::rotate:
      return rotate(image, magnitude, /*expand=*/false, sampling);
    case AugmentOp::brightness:
      return adjust_brightness(image, 1.0 + magnitude);
    case AugmentOp::color:
      return adjust_saturation(image, 1.0 + magnitude);
    case AugmentOp::contrast:
      return adjust_contrast(image, 1.0 + magnitude);
    case AugmentOp::sharpness:
      return adjust_sharpness(image, 1.0 + magnitude);
    case AugmentOp::posterize:
      return posterize(image, static_cast<std::int64_t>(magnitude));
    case AugmentOp::solarize:
      return solarize(image, max_value(image) * magnitude);
    case AugmentOp::auto_contrast:
      return autocontrast(image);
    case AugmentOp::equalize:
      return equalize(image);
    case AugmentOp::invert:
      return invert(image);
  }
  return image;
}

}  // namespace lockstep::transforms
