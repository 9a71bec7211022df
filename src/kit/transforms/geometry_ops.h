// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/geometry.h>

// torchvision.transforms.v2.functional: the operators of LibTorch that torchvision calls, in its order.
namespace lockstep::transforms {

// Pixels to add at each edge.
struct Sides {
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t top = 0;
  std::int64_t bottom = 0;
};

// `antialias` is for bilinear and bicubic interpolation.
at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width,
                  InterpolationMode interpolation, bool antialias);
// Zeros where the box extends beyond the image.
at::Tensor crop(const at::Tensor& image, const Box& box);
// One fill for all channels, one per channel, or none for zeros.
at::Tensor pad(const at::Tensor& image, const Sides& sides, const Numbers& fill, PaddingMode mode);

}  // namespace lockstep::transforms
