// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
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

GaussianBlur::GaussianBlur(Size kernel_size, const GaussianBlurOptions& options)
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

namespace {

struct Rectangle {
  Box box;
  at::Tensor value;
};

at::Tensor draw_value(const ErasingValue& value, std::int64_t channels, const Box& box,
                      const OptionalGenerator& generator) {
  if (value.empty()) {
    return at::empty({channels, box.height, box.width}, at::kFloat).normal_(0, 1, generator);
  }
  return at::tensor(at::ArrayRef<double>(value), at::kFloat).view({-1, 1, 1});
}

// None when no rectangle was smaller than the image.
std::optional<Rectangle> draw_rectangle(const at::Tensor& image, const RandomErasingOptions& options,
                                        const Range& log_ratio, const OptionalGenerator& generator) {
  constexpr int kAttempts = 10;
  const auto height = image.size(-2);
  const auto width = image.size(-1);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto area = static_cast<double>(height * width) * uniform(options.scale, generator);
    const auto ratio = draw_ratio(log_ratio, generator);
    Box box = {.height = rounded(std::sqrt(area * ratio)), .width = rounded(std::sqrt(area / ratio))};
    if (box.height >= height || box.width >= width) continue;
    auto value = draw_value(options.value, image.size(-3), box, generator);
    box.top = below(height - box.height + 1, generator);
    box.left = below(width - box.width + 1, generator);
    return Rectangle{.box = box, .value = std::move(value)};
  }
  return std::nullopt;
}

}  // namespace

ErasingValue::ErasingValue(std::string_view random) {
  if (random == "random") return;
  throw_error<ArgumentError>(
      "RandomErasing: value should be a number, one per channel, or \"random\", not \"{}\"", random);
}

RandomErasing::RandomErasing(const RandomErasingOptions& options) : options_(options) {
  check_probability("RandomErasing", options_.p);
  check_range("RandomErasing", "scale", options_.scale, 0);
  check_range("RandomErasing", "ratio", options_.ratio, 0);
  if (options_.scale.second > 1 || options_.ratio.first == 0) {
    throw_error<ArgumentError>(
        "RandomErasing: scale should end at most at 1 and ratio begin above 0, but they are {} and {}",
        range_text(options_.scale), range_text(options_.ratio));
  }
  log_ratio_ = {float_log(options_.ratio.first), float_log(options_.ratio.second)};
}

at::Tensor RandomErasing::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_image("RandomErasing", image);
  const auto values = static_cast<std::int64_t>(options_.value.size());
  if (values > 1 && values != image.size(-3)) {
    throw_error<ArgumentError>("RandomErasing: value has {} numbers for an image of {}", values,
                               shape_text(image));
  }
  if (!happens(options_.p, generator)) return image;
  const auto rectangle = draw_rectangle(image, options_, log_ratio_, generator);
  if (!rectangle) return image;
  const auto& box = rectangle->box;
  auto result = options_.inplace ? image : image.clone();
  result.narrow(-2, box.top, box.height).narrow(-1, box.left, box.width).copy_(rectangle->value);
  return result;
}

std::string RandomErasing::to_string() const {
  const auto value =
      options_.value.empty() ? "" : fmt::format("value=[{}], ", joined(options_.value, float_text));
  return fmt::format("RandomErasing(p={}, scale={}, ratio={}, {}inplace={})", float_text(options_.p),
                     range_text(options_.scale), range_text(options_.ratio), value,
                     bool_text(options_.inplace));
}

namespace {

void check_options(std::string_view transform, const MixOptions& options) {
  if (!(options.alpha > 0)) {
    throw_error<ArgumentError>("{}: alpha should be positive, but it is {}", transform, options.alpha);
  }
  if (options.num_classes && *options.num_classes <= 0) {
    throw_error<ArgumentError>("{}: num_classes should be positive, but it is {}", transform,
                               *options.num_classes);
  }
}

void check_class_indices(std::string_view transform, const at::Tensor& labels,
                         std::optional<std::int64_t> num_classes) {
  if (!num_classes) {
    throw_error<ArgumentError>("{}: labels of shape {} are class indices; set num_classes", transform,
                               shape_text(labels));
  }
  if (labels.scalar_type() != at::kLong) {
    throw_error<ArgumentError>("{}: class indices should be int64, but they are {}", transform,
                               c10::toString(labels.scalar_type()));
  }
  const auto [least, most] = at::aminmax(labels);
  if (least.item<std::int64_t>() < 0 || most.item<std::int64_t>() >= *num_classes) {
    throw_error<ArgumentError>("{}: labels are in {} .. {}, but num_classes is {}", transform,
                               least.item<std::int64_t>(), most.item<std::int64_t>(), *num_classes);
  }
}

void check_batch(std::string_view transform, const at::Tensor& images, const at::Tensor& labels,
                 const MixOptions& options) {
  check_image(transform, images);
  if (!labels.defined() || images.dim() != 4 || labels.dim() < 1 || labels.dim() > 2 ||
      labels.size(0) != images.size(0) || images.size(0) == 0) {
    throw_error<ArgumentError>(
        "{}: images should be [n, channels, height, width] and labels [n] or [n, classes], but they are {} "
        "and {}",
        transform, shape_text(images), labels.defined() ? shape_text(labels) : "undefined");
  }
  if (labels.dim() == 1) check_class_indices(transform, labels, options.num_classes);
  if (labels.dim() == 2 && labels.size(1) != options.num_classes.value_or(labels.size(1))) {
    throw_error<ArgumentError>("{}: labels of shape {} do not have num_classes, which is {}", transform,
                               shape_text(labels), *options.num_classes);
  }
}

// Of Beta(alpha, alpha).
double draw_part(double alpha, const OptionalGenerator& generator) {
  const std::array<double, 2> both = {alpha, alpha};
  const auto parts =
      at::_sample_dirichlet(at::tensor(at::ArrayRef<double>(both), at::kFloat).view({1, 2}), generator);
  return parts[0][0].item<float>();
}

at::Tensor weighted(const at::Tensor& samples, double part) {
  return at::roll(samples, 1, 0).mul_(1.0 - part).add_(samples.mul(part));
}

at::Tensor mixed_labels(const at::Tensor& labels, const MixOptions& options, double part) {
  auto probabilities = labels.dim() == 1 ? at::one_hot(labels, *options.num_classes) : labels;
  if (!probabilities.is_floating_point()) probabilities = probabilities.to(at::kFloat);
  return weighted(probabilities, part);
}

// Around a random pixel, cut off at the edges.
Box draw_box(std::int64_t height, std::int64_t width, double part, const OptionalGenerator& generator) {
  const auto x = below(width, generator);
  const auto y = below(height, generator);
  const auto half = 0.5 * std::sqrt(1.0 - part);
  const auto half_width = static_cast<std::int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<std::int64_t>(half * static_cast<double>(height));
  const auto left = std::max<std::int64_t>(x - half_width, 0);
  const auto top = std::max<std::int64_t>(y - half_height, 0);
  return {.top = top,
          .left = left,
          .height = std::min(y + half_height, height) - top,
          .width = std::min(x + half_width, width) - left};
}

at::Tensor part_of(const at::Tensor& images, const Box& box) {
  return images.narrow(-2, box.top, box.height).narrow(-1, box.left, box.width);
}

std::string text_of(std::string_view transform, const MixOptions& options) {
  const auto classes = options.num_classes ? fmt::format(", num_classes={}", *options.num_classes) : "";
  return fmt::format("{}(alpha={}{})", transform, float_text(options.alpha), classes);
}

}  // namespace

MixUp::MixUp(const MixOptions& options) : options_(options) { check_options("MixUp", options_); }

MixedBatch MixUp::operator()(const at::Tensor& images, const at::Tensor& labels,
                             const OptionalGenerator& generator) const {
  check_batch("MixUp", images, labels, options_);
  if (!images.is_floating_point()) {
    throw ArgumentError("MixUp: images should be of floats, but they are uint8; convert them with ToDtype");
  }
  const auto part = draw_part(options_.alpha, generator);
  return {weighted(images, part), mixed_labels(labels, options_, part)};
}

std::string MixUp::to_string() const { return text_of("MixUp", options_); }

CutMix::CutMix(const MixOptions& options) : options_(options) { check_options("CutMix", options_); }

MixedBatch CutMix::operator()(const at::Tensor& images, const at::Tensor& labels,
                              const OptionalGenerator& generator) const {
  check_batch("CutMix", images, labels, options_);
  const auto part = draw_part(options_.alpha, generator);
  const auto box = draw_box(images.size(-2), images.size(-1), part, generator);
  auto mixed = images.clone();
  part_of(mixed, box).copy_(at::roll(part_of(images, box), 1, 0));
  const auto pixels = static_cast<double>(images.size(-2) * images.size(-1));
  const auto kept = 1.0 - static_cast<double>(box.height * box.width) / pixels;
  return {std::move(mixed), mixed_labels(labels, options_, kept)};
}

std::string CutMix::to_string() const { return text_of("CutMix", options_); }

}  // namespace lockstep::transforms
