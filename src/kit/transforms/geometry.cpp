// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include <ATen/ops/flip.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/transforms/geometry.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/geometry_ops.h"
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
                   Literal<PaddingMode> mode) {
  const auto count = padding.size();
  if (count == 3 || count > 4 || std::ranges::any_of(padding, [](auto pixels) { return pixels < 0; })) {
    throw_error<ArgumentError>(
        "{}: padding should be 1, 2 or 4 numbers that are not negative, but it is {{{}}}", transform,
        fmt::join(padding, ", "));
  }
  if (fill.size() > 1 && mode != PaddingMode::constant) {
    throw_error<ArgumentError>("{}: padding_mode {} takes no fill of {} values", transform, mode.text(),
                               fill.size());
  }
}

Sides sides_of(const Padding& padding) {
  if (padding.size() == 4) {
    return {.left = padding[0], .right = padding[2], .top = padding[1], .bottom = padding[3]};
  }
  return {.left = padding.front(), .right = padding.front(), .top = padding.back(), .bottom = padding.back()};
}

Resize::Resize(Size size, const ResizeOptions& options) : size_(std::move(size)), options_(options) {
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

Pad::Pad(Padding padding, const PadOptions& options) : padding_(std::move(padding)), options_(options) {
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
                     options_.padding_mode.text());
}

namespace {

// Where a crop of one edge begins: before the image where the crop is longer.
std::int64_t central(std::int64_t edge, std::int64_t cropped) {
  return cropped > edge ? -((cropped - edge) / 2) : rounded(static_cast<double>(edge - cropped) / 2.0);
}

// The whole image, or the largest central part of an allowed ratio.
Box central_part(std::int64_t height, std::int64_t width, const Range& ratio) {
  const auto whole = static_cast<double>(width) / static_cast<double>(height);
  auto part_height = height;
  auto part_width = width;
  if (whole < ratio.first) part_height = rounded(static_cast<double>(width) / ratio.first);
  if (whole > ratio.second) part_width = rounded(static_cast<double>(height) * ratio.second);
  return {.top = (height - part_height) / 2,
          .left = (width - part_width) / 2,
          .height = part_height,
          .width = part_width};
}

// The padding of an image of that size: the given one, and twice what is missing.
Sides padding_for(std::int64_t height, std::int64_t width, std::pair<std::int64_t, std::int64_t> size,
                  const RandomCropOptions& options) {
  auto sides = options.padding.empty() ? Sides{} : sides_of(options.padding);
  if (!options.pad_if_needed) return sides;
  const auto missing_height = std::max<std::int64_t>(size.first - height - sides.top - sides.bottom, 0);
  const auto missing_width = std::max<std::int64_t>(size.second - width - sides.left - sides.right, 0);
  sides.top += missing_height;
  sides.bottom += missing_height;
  sides.left += missing_width;
  sides.right += missing_width;
  return sides;
}

// torchvision draws only where there is a choice.
std::int64_t draw_offset(std::int64_t edge, std::int64_t cropped, const OptionalGenerator& generator) {
  return edge > cropped ? below(edge - cropped + 1, generator) : 0;
}

bool is_inside(const Box& box, const EncodedImage& image) {
  return box.top >= 0 && box.left >= 0 && box.top + box.height <= image.height &&
         box.left + box.width <= image.width;
}

}  // namespace

CenterCrop::CenterCrop(Size size) : size_(std::move(size)) { edges_of("CenterCrop", size_); }

Box CenterCrop::get_params(std::int64_t height, std::int64_t width, const OptionalGenerator&) const {
  const auto [cropped_height, cropped_width] = edges_of("CenterCrop", size_);
  return {.top = central(height, cropped_height),
          .left = central(width, cropped_width),
          .height = cropped_height,
          .width = cropped_width};
}

at::Tensor CenterCrop::operator()(const at::Tensor& image, const OptionalGenerator&) const {
  check_image("CenterCrop", image);
  return crop(image, get_params(image.size(-2), image.size(-1)));
}

at::Tensor CenterCrop::operator()(const EncodedImage& image, const OptionalGenerator& generator) const {
  const auto box = get_params(image.height, image.width);
  return is_inside(box, image) ? image.decode(box, std::nullopt) : (*this)(image.decode_all(), generator);
}

std::string CenterCrop::to_string() const {
  return fmt::format("CenterCrop(size=({}, {}))", size_.front(), size_.back());
}

RandomCrop::RandomCrop(Size size, const RandomCropOptions& options)
    : size_(std::move(size)), options_(options) {
  edges_of("RandomCrop", size_);
  check_padding("RandomCrop", options_.padding, options_.fill, options_.padding_mode);
  if (options_.padding == Padding(0)) options_.padding.clear();
}

Box RandomCrop::get_params(std::int64_t height, std::int64_t width,
                           const OptionalGenerator& generator) const {
  const auto size = edges_of("RandomCrop", size_);
  const auto sides = padding_for(height, width, size, options_);
  const auto padded_height = height + sides.top + sides.bottom;
  const auto padded_width = width + sides.left + sides.right;
  if (padded_height < size.first || padded_width < size.second) {
    throw_error<ArgumentError>(
        "RandomCrop: the crop of {} x {} (height x width) is larger than the image, which is {} x {} with "
        "its padding; set pad_if_needed, or resize the image first",
        size.first, size.second, padded_height, padded_width);
  }
  const auto top = draw_offset(padded_height, size.first, generator);
  const auto left = draw_offset(padded_width, size.second, generator);
  return {.top = top - sides.top, .left = left - sides.left, .height = size.first, .width = size.second};
}

at::Tensor RandomCrop::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_image("RandomCrop", image);
  const auto height = image.size(-2);
  const auto width = image.size(-1);
  auto box = get_params(height, width, generator);
  const auto sides = padding_for(height, width, edges_of("RandomCrop", size_), options_);
  if (sides.left + sides.right + sides.top + sides.bottom == 0) return crop(image, box);
  box.top += sides.top;
  box.left += sides.left;
  return crop(pad(image, sides, options_.fill, options_.padding_mode), box);
}

at::Tensor RandomCrop::operator()(const EncodedImage& image, const OptionalGenerator& generator) const {
  const auto sides = padding_for(image.height, image.width, edges_of("RandomCrop", size_), options_);
  if (sides.left + sides.right + sides.top + sides.bottom != 0) return (*this)(image.decode_all(), generator);
  return image.decode(get_params(image.height, image.width, generator), std::nullopt);
}

std::string RandomCrop::to_string() const {
  std::string padding;
  if (!options_.padding.empty()) {
    const auto sides = sides_of(options_.padding);
    padding = fmt::format("padding=[{}, {}, {}, {}], ", sides.left, sides.right, sides.top, sides.bottom);
  }
  return fmt::format("RandomCrop(size=({}, {}), {}pad_if_needed={}, fill={}, padding_mode={})", size_.front(),
                     size_.back(), padding, bool_text(options_.pad_if_needed), fill_text(options_.fill),
                     options_.padding_mode.text());
}

RandomResizedCrop::RandomResizedCrop(Size size, const RandomResizedCropOptions& options)
    : size_(std::move(size)), options_(options) {
  edges_of("RandomResizedCrop", size_);
  check_range("RandomResizedCrop", "scale", options_.scale, 0);
  check_range("RandomResizedCrop", "ratio", options_.ratio, 0);
  if (options_.ratio.first == 0) {
    throw ArgumentError("RandomResizedCrop: ratio should be of positive numbers, but it begins with 0");
  }
  log_ratio_ = {float_log(options_.ratio.first), float_log(options_.ratio.second)};
}

Box RandomResizedCrop::get_params(std::int64_t height, std::int64_t width,
                                  const OptionalGenerator& generator) const {
  constexpr int kAttempts = 10;
  const auto area = static_cast<double>(height * width);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto part_area = area * uniform(options_.scale, generator);
    const auto ratio = draw_ratio(log_ratio_, generator);
    const auto part_width = rounded(std::sqrt(part_area * ratio));
    const auto part_height = rounded(std::sqrt(part_area / ratio));
    if (part_width <= 0 || part_width > width || part_height <= 0 || part_height > height) continue;
    const auto top = below(height - part_height + 1, generator);
    const auto left = below(width - part_width + 1, generator);
    return {.top = top, .left = left, .height = part_height, .width = part_width};
  }
  return central_part(height, width, options_.ratio);
}

at::Tensor RandomResizedCrop::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_image("RandomResizedCrop", image);
  const auto box = get_params(image.size(-2), image.size(-1), generator);
  return resize(crop(image, box), size_.front(), size_.back(), options_.interpolation, options_.antialias);
}

at::Tensor RandomResizedCrop::operator()(const EncodedImage& image,
                                         const OptionalGenerator& generator) const {
  const ImageSize result{.height = size_.front(), .width = size_.back()};
  const auto decoded = image.decode(get_params(image.height, image.width, generator), result);
  return resize(decoded, result.height, result.width, options_.interpolation, options_.antialias);
}

std::string RandomResizedCrop::to_string() const {
  return fmt::format("RandomResizedCrop(size=({}, {}), scale={}, ratio={}, interpolation={}, antialias={})",
                     size_.front(), size_.back(), range_text(options_.scale), range_text(options_.ratio),
                     text_of(options_.interpolation), bool_text(options_.antialias));
}

}  // namespace lockstep::transforms
