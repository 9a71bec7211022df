// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <lockstep/transforms/augment.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/text.h"

namespace lockstep::transforms {
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

MixUp::MixUp(MixOptions options) : options_(options) { check_options("MixUp", options_); }

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

CutMix::CutMix(MixOptions options) : options_(options) { check_options("CutMix", options_); }

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
