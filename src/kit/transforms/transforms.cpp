// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <lockstep/transforms/transforms.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/color_ops.h"
#include "transforms/draws.h"
#include "transforms/text.h"

namespace lockstep::transforms {
namespace {

constexpr std::int64_t kByteValues = 256;
constexpr std::int64_t kColors = 3;

at::Tensor channel_values(const std::vector<double>& values, const at::Tensor& image) {
  return at::tensor(at::ArrayRef<double>(values), image.options()).view({-1, 1, 1});
}

void check_channels(std::string_view name, const std::vector<double>& values, const at::Tensor& image) {
  const auto channels = static_cast<std::int64_t>(values.size());
  if (channels == 1 || channels == image.size(-3)) return;
  throw_error<ArgumentError>("Normalize: {} has {} values for an image of {}", name, channels,
                             shape_text(image));
}

// One look-up per pixel. It has the bits of LibTorch's kernels, which filled the table, and took 85 us for
// interleaved colours of 224 x 224, where multiply and add took 115 us.
void convert_colors(const std::uint8_t* pixels, std::int64_t count, const float* table, float* out,
                    std::int64_t plane) {
  for (std::int64_t i = 0; i < count; ++i, pixels += kColors) {
    out[i] = table[pixels[0]];
    out[i + plane] = table[kByteValues + pixels[1]];
    out[i + 2 * plane] = table[2 * kByteValues + pixels[2]];
  }
}

void convert_row(const std::uint8_t* pixels, std::int64_t stride, std::int64_t count, const float* table,
                 float* out) {
  if (stride == 1) {
    std::transform(pixels, pixels + count, out, [table](std::uint8_t byte) { return table[byte]; });
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) out[i] = table[pixels[i * stride]];
}

// `image` uint8 [channels, height, width] of any strides, `table` float32 [channels, 256].
void convert_image(const at::Tensor& image, const float* table, float* out) {
  const auto channels = image.size(0);
  const auto height = image.size(1);
  const auto width = image.size(2);
  const auto* const pixels = image.const_data_ptr<std::uint8_t>();
  const bool colors = channels == kColors && image.stride(0) == 1 && image.stride(2) == kColors;
  for (std::int64_t y = 0; y < height; ++y, out += width) {
    const auto* const row = pixels + y * image.stride(1);
    if (colors) {
      convert_colors(row, width, table, out, height * width);
      continue;
    }
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      convert_row(row + channel * image.stride(0), image.stride(2), width, table + channel * kByteValues,
                  out + channel * height * width);
    }
  }
}

at::Tensor convert(const at::Tensor& image, const at::Tensor& values) {
  const auto channels = image.size(-3);
  const auto images = image.reshape({-1, channels, image.size(-2), image.size(-1)});
  const auto table = values.expand({channels, kByteValues}).contiguous();
  auto result = at::empty(image.sizes(), image.options().dtype(at::kFloat), at::MemoryFormat::Contiguous);
  const auto pixels = channels * image.size(-2) * image.size(-1);
  auto* const out = result.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < images.size(0); ++i) {
    convert_image(images[i], table.const_data_ptr<float>(), out + i * pixels);
  }
  return result;
}

// The float of each byte, by the transforms themselves: float32 [channels or 1, 256].
template <typename Conversion>
at::Tensor byte_values(const Conversion& conversion, const Normalize& normalize) {
  const auto bytes = at::arange(kByteValues, at::kByte).view({1, 1, kByteValues});
  return normalize(conversion(bytes).repeat({normalize.channels(), 1, 1})).squeeze(1);
}

}  // namespace

at::Tensor ToTensor::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("ToTensor", image);
  if (image.scalar_type() != at::kByte) return image;
  return image.contiguous().to(at::kFloat).div_(255);
}

ToDtype::ToDtype(at::ScalarType dtype, const ToDtypeOptions& options) : dtype_(dtype), options_(options) {
  if (dtype == at::kByte || at::isFloatingType(dtype)) return;
  throw_error<ArgumentError>("ToDtype: dtype should be uint8 or a floating-point one, but it is {}",
                             c10::toString(dtype));
}

at::Tensor ToDtype::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("ToDtype", image);
  return options_.scale ? to_dtype(image, dtype_) : image.to(dtype_);
}

std::string ToDtype::to_string() const { return fmt::format("ToDtype(scale={})", bool_text(options_.scale)); }

Normalize::Normalize(std::vector<double> mean, std::vector<double> std, const NormalizeOptions& options)
    : mean_(std::move(mean)), std_(std::move(std)), options_(options) {
  if (mean_.empty() || std_.empty()) {
    throw ArgumentError("Normalize: mean and std need one value, or one per channel; one of them is empty");
  }
  if (std::ranges::find(std_, 0) != std_.end()) {
    throw ArgumentError("Normalize: std is zero for a channel, which would divide by zero");
  }
}

at::Tensor Normalize::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("Normalize", image);
  if (!image.is_floating_point()) {
    throw_error<ArgumentError>("Normalize: the image is {}; convert it with ToTensor() first",
                               c10::toString(image.scalar_type()));
  }
  check_channels("mean", mean_, image);
  check_channels("std", std_, image);
  const auto mean = channel_values(mean_, image);
  auto result = image;
  result = options_.inplace ? result.sub_(mean) : image.sub(mean);
  return result.div_(channel_values(std_, image));
}

std::int64_t Normalize::channels() const {
  return static_cast<std::int64_t>(std::max(mean_.size(), std_.size()));
}

std::string Normalize::to_string() const {
  return fmt::format("Normalize(mean=[{}], std=[{}], inplace={})", joined(mean_, float_text),
                     joined(std_, float_text), bool_text(options_.inplace));
}

NormalizedConversion::NormalizedConversion(ToTensor conversion, Normalize normalize)
    : conversion_(conversion),
      normalize_(std::move(normalize)),
      values_(byte_values(conversion, normalize_)) {}

NormalizedConversion::NormalizedConversion(ToDtype conversion, Normalize normalize)
    : conversion_(conversion), normalize_(std::move(normalize)) {
  if (conversion.dtype() == at::kFloat) values_ = byte_values(conversion, normalize_);
}

at::Tensor NormalizedConversion::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("Normalize", image);
  const bool in_one_pass = values_.defined() && image.is_cpu() && image.scalar_type() == at::kByte &&
                           (values_.size(0) == 1 || values_.size(0) == image.size(-3));
  return in_one_pass ? convert(image, values_) : normalize_(conversion_(image));
}

namespace {

std::vector<std::string> texts_of(const std::vector<Transform>& transforms) {
  std::vector<std::string> texts;
  for (const auto& transform : transforms) texts.push_back(transform.to_string());
  return texts;
}

void check_list(std::string_view name, const std::vector<Transform>& transforms) {
  if (transforms.empty()) throw_error<ArgumentError>("{}: pass at least one transform", name);
}

// Python's str.replace().
std::string with_replaced(std::string text, std::string_view old, std::string_view other) {
  for (auto at = text.find(old); at != std::string::npos; at = text.find(old, at + other.size())) {
    text.replace(at, old.size(), other);
  }
  return text;
}

// The representation of a module: what stands in one line stays in it.
std::string framed(std::string_view name, const std::string& extra) {
  if (extra.find('\n') == std::string::npos) return fmt::format("{}({})", name, extra);
  return fmt::format("{}(\n  {}\n)", name, with_replaced(extra, "\n", "\n  "));
}

// The step of the first two, if there is one for both.
std::optional<Transform> common_step(const Transform& first, const Transform& second) {
  const auto* const normalize = second.target<Normalize>();
  if (normalize == nullptr) return std::nullopt;
  if (const auto* const conversion = first.target<ToTensor>()) {
    return NormalizedConversion(*conversion, *normalize);
  }
  if (const auto* const conversion = first.target<ToDtype>()) {
    return NormalizedConversion(*conversion, *normalize);
  }
  return std::nullopt;
}

std::vector<Transform> steps_of(const std::vector<Transform>& transforms) {
  std::vector<Transform> steps;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    const auto common =
        i + 1 < transforms.size() ? common_step(transforms[i], transforms[i + 1]) : std::nullopt;
    steps.push_back(common.value_or(transforms[i]));
    if (common) ++i;
  }
  return steps;
}

std::vector<double> normalized(const Numbers& p, std::size_t count) {
  if (p.empty()) return std::vector<double>(count, 1.0 / static_cast<double>(count));
  if (p.size() != count) {
    throw_error<ArgumentError>("RandomChoice: p has {} probabilities for {} transforms", p.size(), count);
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  if (sum <= 0 || std::ranges::any_of(p, [](double value) { return value < 0; })) {
    throw_error<ArgumentError>(
        "RandomChoice: p should have no negative number and one above 0, but it is {{{}}}",
        fmt::join(p, ", "));
  }
  std::vector<double> result;
  for (const auto value : p) result.push_back(value / sum);
  return result;
}

}  // namespace

std::string detail::module_text(const std::string& name, const std::vector<std::string>& transforms) {
  return framed(name, "    " + fmt::format("{}", fmt::join(transforms, "\n    ")));
}

Compose<>::Compose(std::vector<Transform> transforms)
    : text_(detail::module_text("Compose", texts_of(transforms))), steps_(steps_of(transforms)) {
  check_list("Compose", transforms);
}

at::Tensor Compose<>::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  auto result = image;
  for (const auto& step : steps_) result = step(result, generator);
  return result;
}

at::Tensor Compose<>::operator()(const EncodedImage& image, const OptionalGenerator& generator) const {
  auto result = steps_.front()(image, generator);
  for (const auto& step : std::span(steps_).subspan(1)) result = step(result, generator);
  return result;
}

RandomApply::RandomApply(std::vector<Transform> transforms, double p)
    : text_(detail::module_text("RandomApply", texts_of(transforms))),
      transforms_((check_list("RandomApply", transforms), std::move(transforms))),
      p_(p) {
  check_probability("RandomApply", p);
}

at::Tensor RandomApply::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  return happens(p_, generator) ? transforms_(image, generator) : image;
}

RandomChoice::RandomChoice(std::vector<Transform> transforms, Numbers p)
    : transforms_((check_list("RandomChoice", transforms), std::move(transforms))),
      p_(normalized(p, transforms_.size())) {}

at::Tensor RandomChoice::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  const auto p = at::tensor(at::ArrayRef<double>(p_), at::kFloat);
  const auto index = at::multinomial(p, 1, /*replacement=*/false, generator).item<std::int64_t>();
  return transforms_[static_cast<std::size_t>(index)](image, generator);
}

std::string RandomChoice::to_string() const {
  return framed("RandomChoice", fmt::format("transforms=[{}], p=[{}]", fmt::join(texts_of(transforms_), ", "),
                                            joined(p_, float_text)));
}

}  // namespace lockstep::transforms
