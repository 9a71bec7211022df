// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <ATen/ops/randperm.h>
#include <fmt/ranges.h>

#include <lockstep/transforms/augment.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/color_ops.h"
#include "transforms/draws.h"
#include "transforms/text.h"

namespace lockstep::transforms {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kHalfCircle = 0.5;

struct JitterBounds {
  double center;
  double least;
  double greatest;
};

constexpr JitterBounds kFactors = {.center = 1, .least = 0, .greatest = kInfinity};
constexpr JitterBounds kHues = {.center = 0, .least = -kHalfCircle, .greatest = kHalfCircle};

// None where nothing would change.
std::optional<Range> jitter_range(std::string_view name, const Numbers& value, const JitterBounds& bounds) {
  if (value.empty()) return std::nullopt;
  Range range = {value.front(), value.back()};
  if (value.size() == 1) {
    range = {bounds.center - value.front(), bounds.center + value.front()};
    if (bounds.center > 0) range.first = std::max(range.first, 0.0);
  }
  const bool within =
      bounds.least <= range.first && range.first <= range.second && range.second <= bounds.greatest;
  if (value.size() > 2 || !within || (value.size() == 1 && value.front() < 0)) {
    throw_error<ArgumentError>(
        "ColorJitter: {} should be one number that is not negative or {{least, greatest}}, within {} and {}, "
        "but it is {{{}}}",
        name, bounds.least, bounds.greatest, fmt::join(value, ", "));
  }
  if (range.first == bounds.center && range.second == bounds.center) return std::nullopt;
  return range;
}

struct Adjustment {
  std::string_view name;
  at::Tensor (*adjust)(const at::Tensor&, double);
  std::optional<double> amount;
};

Range sigma_range(const Numbers& sigma) {
  const bool one_or_two = sigma.size() == 1 || sigma.size() == 2;
  if (!one_or_two || sigma.front() <= 0 || sigma.front() > sigma.back()) {
    throw_error<ArgumentError>(
        "GaussianBlur: sigma should be one positive number or {{least, greatest}}, but it is {{{}}}",
        fmt::join(sigma, ", "));
  }
  return {sigma.front(), sigma.back()};
}

}  // namespace

ColorJitter::ColorJitter(const ColorJitterOptions& options)
    : brightness_(jitter_range("brightness", options.brightness, kFactors)),
      contrast_(jitter_range("contrast", options.contrast, kFactors)),
      saturation_(jitter_range("saturation", options.saturation, kFactors)),
      hue_(jitter_range("hue", options.hue, kHues)) {}

at::Tensor ColorJitter::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_color_image("ColorJitter", image);
  const auto draw = [&](const std::optional<Range>& range) -> std::optional<double> {
    return range ? std::optional(uniform(*range, generator)) : std::nullopt;
  };
  const auto order = at::randperm(4, generator, at::kLong);
  // Braces: in this order.
  const std::array<Adjustment, 4> adjustments = {{{"brightness", adjust_brightness, draw(brightness_)},
                                                  {"contrast", adjust_contrast, draw(contrast_)},
                                                  {"saturation", adjust_saturation, draw(saturation_)},
                                                  {"hue", adjust_hue, draw(hue_)}}};
  auto result = image;
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    const auto& next = adjustments.at(static_cast<std::size_t>(order.const_data_ptr<std::int64_t>()[i]));
    if (next.amount) result = next.adjust(result, *next.amount);
  }
  return result;
}

std::string ColorJitter::to_string() const {
  std::vector<std::string> texts;
  const auto add = [&](std::string_view name, const std::optional<Range>& range) {
    if (range) texts.push_back(fmt::format("{}={}", name, range_text(*range)));
  };
  add("brightness", brightness_);
  add("contrast", contrast_);
  add("saturation", saturation_);
  add("hue", hue_);
  return fmt::format("ColorJitter({})", fmt::join(texts, ", "));
}

Grayscale::Grayscale(std::int64_t num_output_channels) : num_output_channels_(num_output_channels) {
  if (num_output_channels == 1 || num_output_channels == 3) return;
  throw_error<ArgumentError>("Grayscale: num_output_channels should be 1 or 3, but it is {}",
                             num_output_channels);
}

at::Tensor Grayscale::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_color_image("Grayscale", image);
  return rgb_to_grayscale(image, num_output_channels_);
}

std::string Grayscale::to_string() const {
  return fmt::format("Grayscale(num_output_channels={})", num_output_channels_);
}

RandomGrayscale::RandomGrayscale(double p) : p_(p) { check_probability("RandomGrayscale", p); }

at::Tensor RandomGrayscale::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_color_image("RandomGrayscale", image);
  return happens(p_, generator) ? rgb_to_grayscale(image, image.size(-3)) : image;
}

std::string RandomGrayscale::to_string() const {
  return fmt::format("RandomGrayscale(p={})", float_text(p_));
}

GaussianBlur::GaussianBlur(Size kernel_size, GaussianBlurOptions options)
    : kernel_size_(std::move(kernel_size)), sigma_(sigma_range(options.sigma)) {
  const bool odd = std::ranges::all_of(kernel_size_, [](auto size) { return size > 0 && size % 2 == 1; });
  if (!kernel_size_.empty() && kernel_size_.size() <= 2 && odd) return;
  throw_error<ArgumentError>(
      "GaussianBlur: kernel_size should be one or two odd positive numbers, but it is {{{}}}",
      fmt::join(kernel_size_, ", "));
}

at::Tensor GaussianBlur::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_image("GaussianBlur", image);
  const auto columns = kernel_size_.front();
  const auto rows = kernel_size_.back();
  if (image.size(-1) <= columns / 2 || image.size(-2) <= rows / 2) {
    throw_error<ArgumentError>(
        "GaussianBlur: the kernel of {} columns and {} rows is too large for an image of {}", columns, rows,
        shape_text(image));
  }
  return gaussian_blur(image, columns, rows, uniform(sigma_, generator));
}

std::string GaussianBlur::to_string() const {
  return fmt::format("GaussianBlur(kernel_size=({}, {}), sigma=[{}, {}])", kernel_size_.front(),
                     kernel_size_.back(), float_text(sigma_.first), float_text(sigma_.second));
}

}  // namespace lockstep::transforms
