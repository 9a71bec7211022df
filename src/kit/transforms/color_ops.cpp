// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/color_ops.h"

#include <cmath>
#include <vector>

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

namespace lockstep::transforms {
namespace {

// Of three channels: one, of floats that are not rounded.
at::Tensor luminance(const at::Tensor& image) {
  const auto colors = image.unbind(-3);
  return colors[0].mul(0.2989).add_(colors[1], 0.587).add_(colors[2], 0.114).unsqueeze(-3);
}

at::Tensor gray_of(const at::Tensor& image) {
  auto gray = luminance(image);
  return image.is_floating_point() ? gray : gray.floor_();
}

at::Tensor blend(const at::Tensor& image, const at::Tensor& other, double ratio) {
  return image.mul(ratio).add_(other, 1.0 - ratio).clamp_(0, max_value(image)).to(image.scalar_type());
}

at::Tensor rgb_to_hsv(const at::Tensor& image) {
  const auto colors = image.unbind(-3);
  const auto [least, most] = at::aminmax(image, -3);
  const auto is_gray = most == least;
  const auto range = most - least;
  const auto ones = at::ones_like(most);
  const auto saturation = range / at::where(is_gray, ones, most);
  const auto divisor = at::where(is_gray, ones, range).unsqueeze_(-3);
  auto distances = ((most.unsqueeze(-3) - image) / divisor).unbind(-3);
  auto& red = distances[0];
  auto& green = distances[1];
  auto& blue = distances[2];
  const auto not_red = most != colors[0];
  const auto is_green = most == colors[1];
  const auto where_green = red.add(2.0).sub_(blue).mul_(is_green & not_red);
  const auto where_red = blue.sub_(green).mul_(not_red.logical_not());
  const auto where_blue = green.add_(4.0).sub_(red).mul_(not_red & is_green.logical_not());
  const auto hue = where_red.add_(where_green).add_(where_blue).mul_(1.0 / 6.0).add_(1.0).fmod_(1.0);
  return at::stack({hue, saturation, most}, -3);
}

// The channel of (v, p, q, t) that red, green and blue have in each sixth of the circle of hues.
at::Tensor sources_of_colors(const at::Device& device) {
  return at::tensor({0, 2, 1, 1, 3, 0, 3, 0, 0, 2, 1, 1, 1, 1, 3, 0, 0, 2}, at::kLong)
      .view({3, 6})
      .to(device);
}

at::Tensor hsv_to_rgb(const at::Tensor& image) {
  const auto parts = image.unbind(-3);
  const auto& saturation = parts[1];
  const auto& value = parts[2];
  const auto sixths = parts[0].mul(6);
  const auto sixth = at::floor(sixths);
  const auto fraction = sixths.sub(sixth);
  const auto product = saturation * fraction;
  const auto rest = 1.0 - saturation;
  const auto q = (1.0 - product).mul_(value).clamp_(0.0, 1.0);
  const auto t = product.add(rest).mul_(value).clamp_(0.0, 1.0);
  const auto p = rest.mul(value).clamp_(0.0, 1.0);
  const auto channels = at::stack({value, p, q, t}, -3);
  const auto places = sixth.to(at::kInt).remainder_(6);
  const auto source = sources_of_colors(image.device()).index({at::indexing::Slice(), places});
  return channels.gather(-3, source.movedim(0, -3));
}

// Weights of a blur of 3 x 3 pixels, for each channel.
at::Tensor smoothing_kernel(const at::TensorOptions& options, std::int64_t channels) {
  auto kernel = at::full({3, 3}, 1.0 / 13.0, options);
  kernel[1][1] = 5.0 / 13.0;
  return kernel.expand({channels, 1, 3, 3});
}

at::Tensor gaussian_kernel(std::int64_t size, double sigma, const at::TensorOptions& options) {
  const auto limit = static_cast<double>(size - 1) / (2.0 * std::sqrt(2.0));
  return at::softmax(at::linspace(-limit, limit, size, options).div(sigma).pow(2).neg(), 0);
}

}  // namespace

double max_value(const at::Tensor& image) { return image.scalar_type() == at::kByte ? 255 : 1; }

at::Tensor to_dtype(const at::Tensor& image, at::ScalarType dtype) {
  if (image.scalar_type() == dtype) return image;
  // Just below 256, so that 1.0 becomes 255.
  if (dtype == at::kByte) return image.mul(255 + 1.0 - 1e-3).to(dtype);
  if (image.is_floating_point()) return image.to(dtype);
  return image.to(dtype).mul_(1.0 / 255);
}

at::Tensor rgb_to_grayscale(const at::Tensor& image, std::int64_t num_output_channels) {
  if (image.size(-3) == 1 && num_output_channels == 1) return image.clone();
  if (image.size(-3) == 1) {
    std::vector<std::int64_t> times(static_cast<std::size_t>(image.dim()), 1);
    times[times.size() - 3] = num_output_channels;
    return image.repeat(times);
  }
  const auto gray = luminance(image).to(image.scalar_type());
  return num_output_channels == 3 ? gray.expand(image.sizes()) : gray;
}

at::Tensor adjust_brightness(const at::Tensor& image, double factor) {
  return image.mul(factor).clamp_(0, max_value(image)).to(image.scalar_type());
}

at::Tensor adjust_contrast(const at::Tensor& image, double factor) {
  const auto floats = image.is_floating_point() ? image.scalar_type() : at::kFloat;
  const auto gray = image.size(-3) == 3 ? gray_of(image) : image.to(floats);
  return blend(image, at::mean(gray, {-3, -2, -1}, /*keepdim=*/true), factor);
}

at::Tensor adjust_saturation(const at::Tensor& image, double factor) {
  return image.size(-3) == 1 ? image : blend(image, gray_of(image), factor);
}

at::Tensor adjust_hue(const at::Tensor& image, double factor) {
  if (image.size(-3) == 1 || image.numel() == 0) return image;
  const auto parts = rgb_to_hsv(to_dtype(image, at::kFloat)).unbind(-3);
  const auto hue = parts[0].add(factor).remainder_(1.0);
  return to_dtype(hsv_to_rgb(at::stack({hue, parts[1], parts[2]}, -3)), image.scalar_type());
}

at::Tensor adjust_sharpness(const at::Tensor& image, double factor) {
  const auto height = image.size(-2);
  const auto width = image.size(-1);
  const auto channels = image.size(-3);
  if (image.numel() == 0 || height <= 2 || width <= 2) return image;
  const auto dtype = image.is_floating_point() ? image.scalar_type() : at::kFloat;
  const auto images = image.dim() > 4 ? image.reshape({-1, channels, height, width}) : image;
  auto result = images.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  auto blurred = at::conv2d(result, smoothing_kernel(result.options(), channels), {}, 1, at::IntArrayRef{0},
                            1, channels);
  if (!image.is_floating_point()) blurred.round_();
  auto inner = result.narrow(-2, 1, height - 2).narrow(-1, 1, width - 2);
  inner.add_(blurred.sub_(inner), 1.0 - factor);
  return result.clamp_(0, max_value(image)).to(image.scalar_type()).reshape(image.sizes());
}

at::Tensor gaussian_blur(const at::Tensor& image, std::int64_t columns, std::int64_t rows, double sigma) {
  if (image.numel() == 0) return image;
  const auto channels = image.size(-3);
  const auto dtype = image.is_floating_point() ? image.scalar_type() : at::kFloat;
  auto images = image.reshape({-1, channels, image.size(-2), image.size(-1)}).to(dtype);
  const auto options = images.options();
  const auto kernel =
      gaussian_kernel(rows, sigma, options).unsqueeze(-1) * gaussian_kernel(columns, sigma, options);
  images = at::pad(images, {columns / 2, columns / 2, rows / 2, rows / 2}, "reflect");
  images =
      at::conv2d(images, kernel.expand({channels, 1, rows, columns}), {}, 1, at::IntArrayRef{0}, 1, channels);
  if (!image.is_floating_point()) images.round_();
  return images.to(image.scalar_type()).reshape(image.sizes());
}

at::Tensor posterize(const at::Tensor& image, std::int64_t bits) {
  if (image.is_floating_point()) {
    const auto levels = std::int64_t{1} << bits;
    return image.mul(levels).floor_().clamp_(0, levels - 1).mul_(1.0 / static_cast<double>(levels));
  }
  if (bits >= 8) return image;
  return at::bitwise_and(image, ((std::int64_t{1} << bits) - 1) << (8 - bits));
}

at::Tensor solarize(const at::Tensor& image, double threshold) {
  return at::where(image >= threshold, invert(image), image);
}

at::Tensor autocontrast(const at::Tensor& image) {
  if (image.numel() == 0) return image;
  const auto bound = max_value(image);
  const auto floats = image.is_floating_point() ? image : image.to(at::kFloat);
  auto least = floats.amin({-2, -1}, /*keepdim=*/true);
  auto most = floats.amax({-2, -1}, /*keepdim=*/true);
  const auto is_flat = most == least;
  auto inverse_scale = most.sub_(least).mul_(1.0 / bound);
  least.masked_fill_(is_flat, 0.0);
  inverse_scale.masked_fill_(is_flat, 1.0);
  return floats.sub(least).div_(inverse_scale).clamp_(0, bound).to(image.scalar_type());
}

at::Tensor equalize(const at::Tensor& image) {
  if (image.numel() == 0) return image;
  const auto bytes = to_dtype(image, at::kByte);
  auto shape = bytes.sizes().vec();
  shape.resize(shape.size() - 2);
  shape.push_back(256);
  const auto flat = bytes.flatten(-2).to(at::kLong);
  auto histogram = flat.new_zeros(shape, at::kInt);
  histogram.scatter_add_(-1, flat, histogram.new_ones({1}).expand_as(flat));
  // int64, as cumsum() of integers is.
  const auto sums = histogram.cumsum(-1);
  const auto last_level = sums.argmax(-1).unsqueeze_(-1);
  auto step = (flat.size(-1) - histogram.gather(-1, last_level)).div_(255, "floor");
  const auto is_valid = step.ne(0).unsqueeze_(-1);
  auto levels = sums.narrow(-1, 0, 255);
  const auto half_step = step.div(2, "floor");
  levels.add_(half_step).div_(step.clamp_(1), "floor").clamp_(0, 255);
  shape.back() = 1;
  const auto table = at::cat({bytes.new_zeros(shape), levels.to(at::kByte)}, -1);
  const auto equalized = table.gather(-1, flat).view(bytes.sizes());
  return to_dtype(at::where(is_valid, equalized, bytes), image.scalar_type());
}

at::Tensor invert(const at::Tensor& image) {
  return image.is_floating_point() ? 1.0 - image : image.bitwise_not();
}

}  // namespace lockstep::transforms
