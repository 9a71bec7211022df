// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/geometry_ops.h"

#include <algorithm>
#include <optional>

#include <ATen/Version.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/text.h"

namespace lockstep::transforms {
namespace {

bool resizes_bytes_bilinearly() {
#if defined(__aarch64__)
  return true;
#else
  static const bool answer = [] {
    const auto capability = at::get_cpu_capability();
    return capability == "AVX2" || capability == "AVX512";
  }();
  return answer;
#endif
}

// Whether LibTorch interpolates these pixels as they are, by torchvision's rules.
bool interpolates_as_is(const at::Tensor& image, InterpolationMode mode) {
  if (image.scalar_type() == at::kFloat || image.scalar_type() == at::kDouble) return true;
  if (image.scalar_type() != at::kByte) return false;
  switch (mode) {
    case InterpolationMode::BILINEAR:
      return image.is_cpu() && resizes_bytes_bilinearly();
    case InterpolationMode::BICUBIC:
      return image.is_cpu();
    default:
      return true;
  }
}

at::Tensor interpolate(const at::Tensor& images, at::IntArrayRef size, InterpolationMode mode,
                       bool antialias) {
  using Factors = std::optional<at::ArrayRef<double>>;
  switch (mode) {
    case InterpolationMode::NEAREST:
      return at::upsample_nearest2d(images, size, Factors());
    case InterpolationMode::NEAREST_EXACT:
      return at::_upsample_nearest_exact2d(images, size, Factors());
    case InterpolationMode::BILINEAR:
      return antialias ? at::_upsample_bilinear2d_aa(images, size, /*align_corners=*/false, Factors())
                       : at::upsample_bilinear2d(images, size, /*align_corners=*/false, Factors());
    default:
      return antialias ? at::_upsample_bicubic2d_aa(images, size, /*align_corners=*/false, Factors())
                       : at::upsample_bicubic2d(images, size, /*align_corners=*/false, Factors());
  }
}

// LibTorch makes the result contiguous where a batch of one image has any other stride for the batch.
at::Tensor as_batch(const at::Tensor& image) {
  auto images = image.reshape({-1, image.size(-3), image.size(-2), image.size(-1)});
  if (images.size(0) != 1 || !images.is_contiguous(at::MemoryFormat::ChannelsLast)) return images;
  auto strides = images.strides().vec();
  strides[0] = images.numel();
  return images.as_strided(images.sizes(), strides);
}

std::vector<std::int64_t> with_last(const at::Tensor& image, at::IntArrayRef last) {
  auto sizes = image.sizes().vec();
  std::copy(last.begin(), last.end(), sizes.end() - static_cast<std::ptrdiff_t>(last.size()));
  return sizes;
}

// The positions that lie at each place of an edge with symmetric padding.
at::Tensor mirrored(std::int64_t size, std::int64_t before, std::int64_t after, const at::Device& device) {
  return at::cat({at::arange(before).flip(0), at::arange(size), at::arange(size - after, size).flip(0)})
      .to(device);
}

void check_reflection(const at::Tensor& image, const Sides& sides, Literal<PaddingMode> mode) {
  const std::int64_t most = mode == PaddingMode::reflect ? 1 : 0;
  if (std::max(sides.left, sides.right) <= image.size(-1) - most &&
      std::max(sides.top, sides.bottom) <= image.size(-2) - most) {
    return;
  }
  throw_error<ArgumentError>(
      "padding of {}, {}, {} and {} pixels (left, top, right, bottom) by mode {} needs more pixels than an "
      "image of {} has; pad less, or by mode edge",
      sides.left, sides.top, sides.right, sides.bottom, mode.text(), shape_text(image));
}

at::Tensor pad_each_channel(const at::Tensor& image, const Sides& sides, const Numbers& fill) {
  if (static_cast<std::int64_t>(fill.size()) != image.size(-3)) {
    throw_error<ArgumentError>("fill has {} values for an image of {}; give one, or one per channel",
                               fill.size(), shape_text(image));
  }
  auto result = pad(image, sides, 0, PaddingMode::constant);
  const auto value =
      at::tensor(at::ArrayRef<double>(fill), at::kFloat).to(image.options()).reshape({-1, 1, 1});
  const auto height = result.size(-2);
  const auto width = result.size(-1);
  if (sides.top > 0) result.narrow(-2, 0, sides.top).copy_(value);
  if (sides.left > 0) result.narrow(-1, 0, sides.left).copy_(value);
  if (sides.bottom > 0) result.narrow(-2, height - sides.bottom, sides.bottom).copy_(value);
  if (sides.right > 0) result.narrow(-1, width - sides.right, sides.right).copy_(value);
  return result;
}

}  // namespace

at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width,
                  InterpolationMode interpolation, bool antialias) {
  if (height == image.size(-2) && width == image.size(-1)) return image;
  const auto sizes = with_last(image, {height, width});
  if (image.numel() == 0) return image.reshape(sizes);
  auto images = as_batch(image);
  if (interpolates_as_is(images, interpolation)) {
    return interpolate(images, {height, width}, interpolation, antialias).reshape(sizes);
  }
  images = interpolate(images.to(at::kFloat), {height, width}, interpolation, antialias);
  if (image.scalar_type() == at::kByte) {
    if (interpolation == InterpolationMode::BICUBIC) images.clamp_(0, 255);
    images.round_();
  }
  return images.to(image.scalar_type()).reshape(sizes);
}

at::Tensor crop(const at::Tensor& image, const Box& box) {
  const auto height = image.size(-2);
  const auto width = image.size(-1);
  const auto right = box.left + box.width;
  const auto bottom = box.top + box.height;
  auto part = image.slice(-2, std::max<std::int64_t>(box.top, 0), std::max<std::int64_t>(bottom, 0))
                  .slice(-1, std::max<std::int64_t>(box.left, 0), std::max<std::int64_t>(right, 0));
  if (box.left >= 0 && box.top >= 0 && right <= width && bottom <= height) return part;
  const auto beyond = [](std::int64_t value) { return std::max<std::int64_t>(value, 0); };
  return pad(part,
             {.left = beyond(std::min<std::int64_t>(right, 0) - box.left),
              .right = beyond(right - std::max(width, box.left)),
              .top = beyond(std::min<std::int64_t>(bottom, 0) - box.top),
              .bottom = beyond(bottom - std::max(height, box.top))},
             0, PaddingMode::constant);
}

at::Tensor pad(const at::Tensor& image, const Sides& sides, const Numbers& fill, PaddingMode mode) {
  if (fill.size() > 1) return pad_each_channel(image, sides, fill);
  const auto images = image.reshape({-1, image.size(-3), image.size(-2), image.size(-1)});
  const std::array<std::int64_t, 4> padding = {sides.left, sides.right, sides.top, sides.bottom};
  at::Tensor result;
  if (mode == PaddingMode::constant) {
    result = at::pad(images, padding, "constant", fill.empty() ? 0 : fill.front());
  } else if (mode == PaddingMode::symmetric) {
    check_reflection(image, sides, mode);
    result = images.index_select(-2, mirrored(image.size(-2), sides.top, sides.bottom, image.device()))
                 .index_select(-1, mirrored(image.size(-1), sides.left, sides.right, image.device()));
  } else {
    if (mode == PaddingMode::reflect) check_reflection(image, sides, mode);
    const auto floats = image.is_floating_point() ? images : images.to(at::kFloat);
    result =
        at::pad(floats, padding, mode == PaddingMode::edge ? "replicate" : "reflect").to(image.scalar_type());
  }
  return result.reshape(with_last(image, {result.size(-2), result.size(-1)}));
}

}  // namespace lockstep::transforms
