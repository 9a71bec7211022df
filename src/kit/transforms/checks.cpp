// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/checks.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "transforms/text.h"

namespace lockstep::transforms {

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

void check_image(std::string_view transform, const at::Tensor& image) {
  if (!image.defined()) throw_error<ArgumentError>("{}: the image is an undefined tensor", transform);
  if (image.dim() < 3 || image.size(-3) == 0 || image.size(-2) == 0 || image.size(-1) == 0) {
    throw_error<ArgumentError>(
        "{}: an image should be [..., channels, height, width] with at least one pixel, but it is {}",
        transform, shape_text(image));
  }
  if (image.scalar_type() != at::kByte && !image.is_floating_point()) {
    throw_error<ArgumentError>(
        "{}: an image should be uint8 or floating point, but it is {}; convert it with to()", transform,
        c10::toString(image.scalar_type()));
  }
}

void check_color_image(std::string_view transform, const at::Tensor& image) {
  check_image(transform, image);
  if (image.size(-3) != 1 && image.size(-3) != 3) {
    throw_error<ArgumentError>("{}: an image should have 1 or 3 channels, but it is {}", transform,
                               shape_text(image));
  }
}

void check_probability(std::string_view transform, double p) {
  if (p >= 0 && p <= 1) return;
  throw_error<ArgumentError>("{}: p should be in [0.0, 1.0], but it is {}", transform, p);
}

void check_range(std::string_view transform, std::string_view argument, const Range& range,
                 double lower_bound) {
  if (range.first >= lower_bound && range.first <= range.second) return;
  throw_error<ArgumentError>("{}: {} should be {{least, greatest}} and not below {}, but it is {{{}, {}}}",
                             transform, argument, lower_bound, range.first, range.second);
}

void check_interpolation(std::string_view transform, InterpolationMode interpolation) {
  if (interpolation == InterpolationMode::NEAREST || interpolation == InterpolationMode::BILINEAR) return;
  throw_error<ArgumentError>("{}: interpolation should be nearest or bilinear, but it is {}", transform,
                             text_of(interpolation));
}

std::pair<std::int64_t, std::int64_t> edges_of(std::string_view transform, const Size& size) {
  if (size.empty() || size.size() > 2 || std::ranges::any_of(size, [](auto edge) { return edge <= 0; })) {
    throw_error<ArgumentError>(
        "{}: size should be one positive number or {{height, width}}, but it is {{{}}}", transform,
        fmt::join(size, ", "));
  }
  return {size.front(), size.back()};
}

}  // namespace lockstep::transforms
