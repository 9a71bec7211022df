// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/ops/flip.h>
#include <fmt/ranges.h>

#include <lockstep/transforms/geometry.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/geometry_ops.h"
#include "transforms/padding.h"
#include "transforms/text.h"

namespace lockstep::transforms {
namespace {

struct Edges {
  std::int64_t shorter;
  std::int64_t longer;
};

std::int64_t scaled(std::int64_t value, std::int64_t numerator, std::int64_t denominator) {
  return static_cast<std::int64_t>(static_cast<double>(value * numerator) / static_cast<double>(denominator));
}

Edges resized_edges(const Edges& edges, const Size& size, const Size& max_size) {
  if (size.empty()) return {scaled(max_size.front(), edges.shorter, edges.longer), max_size.front()};
  const Edges wanted = {size.front(), scaled(size.front(), edges.longer, edges.shorter)};
  if (max_size.empty() || wanted.longer <= max_size.front()) return wanted;
  return {scaled(max_size.front(), wanted.shorter, wanted.longer), max_size.front()};
}

void check_max_size(const Size& size, const Size& max_size) {
  if (max_size.empty() && size.empty()) throw ArgumentError("Resize: without a size, max_size is needed");
  if (max_size.empty()) return;
  if (max_size.size() > 1 || max_size.front() <= 0) {
    throw_error<ArgumentError>("Resize: max_size should be one positive number, but it is {{{}}}",
                               fmt::join(max_size, ", "));
  }
  if (size.size() == 2) {
    throw ArgumentError("Resize: max_size limits the longer edge; give one edge as the size, or no max_size");
  }
  if (size.size() == 1 && max_size.front() <= size.front()) {
    throw_error<ArgumentError>("Resize: max_size {} should be greater than the size {} of the shorter edge",
                               max_size.front(), size.front());
  }
}

at::Tensor flip(std::string_view transform, double p, std::int64_t dimension, const at::Tensor& image,
                const OptionalGenerator& generator) {
  check_image(transform, image);
  return happens(p, generator) ? at::flip(image, {dimension}) : image;
}

}  // namespace

void check_padding(std::string_view transform, const Padding& padding, const Numbers& fill,
                   PaddingMode mode) {
  const auto count = padding.size();
  if (count == 3 || count > 4 || std::ranges::any_of(padding, [](auto pixels) { return pixels < 0; })) {
    throw_error<ArgumentError>(
        "{}: padding should be 1, 2 or 4 numbers that are not negative, but it is {{{}}}", transform,
        fmt::join(padding, ", "));
  }
  if (fill.size() > 1 && mode != PaddingMode::constant) {
    throw_error<ArgumentError>("{}: padding_mode {} takes no fill of {} values", transform, text_of(mode),
                               fill.size());
  }
}

Sides sides_of(const Padding& padding) {
  if (padding.size() == 4) {
    return {.left = padding[0], .right = padding[2], .top = padding[1], .bottom = padding[3]};
  }
  return {.left = padding.front(), .right = padding.front(), .top = padding.back(), .bottom = padding.back()};
}

Resize::Resize(Size size, ResizeOptions options) : size_(std::move(size)), options_(std::move(options)) {
  if (!size_.empty()) edges_of("Resize", size_);
  check_max_size(size_, options_.max_size);
}

ImageSize Resize::size_of_result(std::int64_t height, std::int64_t width) const {
  if (size_.size() == 2) return {.height = size_.front(), .width = size_.back()};
  const auto edges =
      resized_edges({std::min(height, width), std::max(height, width)}, size_, options_.max_size);
  if (edges.shorter == 0) {
    throw_error<ArgumentError>("Resize: an image of {} x {} would become {} pixels long and 0 wide", height,
                               width, edges.longer);
  }
  if (width > height) return {.height = edges.shorter, .width = edges.longer};
  return {.height = edges.longer, .width = edges.shorter};
}

at::Tensor Resize::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("Resize", image);
  const auto result = size_of_result(image.size(-2), image.size(-1));
  return resize(image, result.height, result.width, options_.interpolation, options_.antialias);
}

at::Tensor Resize::operator()(const EncodedImage& image, const OptionalGenerator&) const {
  const auto result = size_of_result(image.height, image.width);
  const auto decoded = image.decode({.height = image.height, .width = image.width}, result);
  return resize(decoded, result.height, result.width, options_.interpolation, options_.antialias);
}

std::string Resize::to_string() const {
  const auto size = size_.empty() ? "" : fmt::format("size=[{}], ", fmt::join(size_, ", "));
  const auto max_size =
      options_.max_size.empty() ? "" : fmt::format("max_size={}, ", options_.max_size.front());
  return fmt::format("Resize({}interpolation={}, {}antialias={})", size, text_of(options_.interpolation),
                     max_size, bool_text(options_.antialias));
}

RandomHorizontalFlip::RandomHorizontalFlip(double p) : p_(p) { check_probability("RandomHorizontalFlip", p); }

at::Tensor RandomHorizontalFlip::operator()(const at::Tensor& image,
                                            const OptionalGenerator& generator) const {
  return flip("RandomHorizontalFlip", p_, -1, image, generator);
}

std::string RandomHorizontalFlip::to_string() const {
  return fmt::format("RandomHorizontalFlip(p={})", float_text(p_));
}

RandomVerticalFlip::RandomVerticalFlip(double p) : p_(p) { check_probability("RandomVerticalFlip", p); }

at::Tensor RandomVerticalFlip::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  return flip("RandomVerticalFlip", p_, -2, image, generator);
}

std::string RandomVerticalFlip::to_string() const {
  return fmt::format("RandomVerticalFlip(p={})", float_text(p_));
}

Pad::Pad(Padding padding, PadOptions options) : padding_(std::move(padding)), options_(std::move(options)) {
  if (padding_.empty()) throw ArgumentError("Pad: no padding is given");
  check_padding("Pad", padding_, options_.fill, options_.padding_mode);
}

at::Tensor Pad::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("Pad", image);
  return pad(image, sides_of(padding_), options_.fill, options_.padding_mode);
}

std::string Pad::to_string() const {
  const auto padding = padding_.size() == 1 ? fmt::format("{}", padding_.front())
                                            : fmt::format("[{}]", fmt::join(padding_, ", "));
  return fmt::format("Pad(padding={}, fill={}, padding_mode={})", padding, fill_text(options_.fill),
                     text_of(options_.padding_mode));
}

}  // namespace lockstep::transforms
