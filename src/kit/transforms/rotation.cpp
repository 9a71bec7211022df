// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include <lockstep/transforms/geometry.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/geometry_ops.h"
#include "transforms/text.h"

namespace lockstep::transforms {
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

RandomRotation::RandomRotation(Numbers degrees, RandomRotationOptions options)
    : degrees_(degrees_range("RandomRotation", degrees)), options_(std::move(options)) {
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

RandomAffine::RandomAffine(Numbers degrees, RandomAffineOptions options)
    : degrees_(degrees_range("RandomAffine", degrees)), options_(std::move(options)) {
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
