// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/geometry.h>

// torchvision.transforms.v2.functional: the operators of LibTorch that torchvision calls, in its order.
namespace lockstep::transforms {

struct Sides {
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t top = 0;
  std::int64_t bottom = 0;
};

struct Affine {
  double angle = 0;  // degrees
  std::array<double, 2> translate = {0, 0};
  double scale = 1;
  std::array<double, 2> shear = {0, 0};  // degrees
};

struct Sampling {
  InterpolationMode interpolation = InterpolationMode::nearest;
  Numbers fill = {};    // none: zeros that bilinear interpolation mixes in
  Numbers center = {};  // {x, y}; none: the middle
};

at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width,
                  InterpolationMode interpolation, bool antialias);
// Zeros where the box extends beyond the image.
at::Tensor crop(const at::Tensor& image, const Box& box);
at::Tensor pad(const at::Tensor& image, const Sides& sides, const Numbers& fill, PaddingMode mode);
at::Tensor affine(const at::Tensor& image, const Affine& parameters, const Sampling& sampling);
at::Tensor rotate(const at::Tensor& image, double angle, bool expand, const Sampling& sampling);

}  // namespace lockstep::transforms
