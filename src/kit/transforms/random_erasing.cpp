// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <lockstep/transforms/augment.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/text.h"

namespace lockstep::transforms {
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

RandomErasing::RandomErasing(RandomErasingOptions options) : options_(std::move(options)) {
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

}  // namespace lockstep::transforms
