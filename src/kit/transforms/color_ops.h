// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

// torchvision.transforms.v2.functional: the operators of LibTorch that torchvision calls, in its order.
// Images are checked by the callers.
namespace lockstep::transforms {

// With the range of the values: uint8 or floating point to uint8 or floating point.
at::Tensor to_dtype(const at::Tensor& image, at::ScalarType dtype);
// 1 or 3 channels to 1 or 3.
at::Tensor rgb_to_grayscale(const at::Tensor& image, std::int64_t num_output_channels);
at::Tensor adjust_brightness(const at::Tensor& image, double factor);
at::Tensor adjust_contrast(const at::Tensor& image, double factor);
at::Tensor adjust_saturation(const at::Tensor& image, double factor);
// A part of the circle of hues, in [-0.5, 0.5].
at::Tensor adjust_hue(const at::Tensor& image, double factor);
at::Tensor adjust_sharpness(const at::Tensor& image, double factor);
at::Tensor posterize(const at::Tensor& image, std::int64_t bits);
// The threshold is in the range of the image's values.
at::Tensor solarize(const at::Tensor& image, double threshold);
at::Tensor autocontrast(const at::Tensor& image);
at::Tensor equalize(const at::Tensor& image);
at::Tensor invert(const at::Tensor& image);
// Odd sizes of the kernel, in columns and rows.
at::Tensor gaussian_blur(const at::Tensor& image, std::int64_t columns, std::int64_t rows, double sigma);
// The greatest value of a pixel: 255 or 1.
double max_value(const at::Tensor& image);

}  // namespace lockstep::transforms
