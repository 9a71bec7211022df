// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/geometry.h>

// torchvision.transforms.v2.functional: the operators of LibTorch that torchvision calls, in its order.
namespace lockstep::transforms {

struct Affine {
  double angle = 0;  // degrees
  std::array<double, 2> translate = {0, 0};
  double scale = 1;
  std::array<double, 2> shear = {0, 0};  // degrees
};

struct Sampling {
  InterpolationMode interpolation = InterpolationMode::NEAREST;
  Numbers fill = {};    // none: zeros that bilinear interpolation mixes in
  Numbers center = {};  // {x, y}; none: the middle
};

// Moved, scaled, sheared and turned clockwise around the center; the size of the image stays.
at::Tensor affine(const at::Tensor& image, const Affine& parameters, const Sampling& sampling);
// Turned counter-clockwise by degrees. The size of the image stays or, with `expand`, holds all of it.
at::Tensor rotate(const at::Tensor& image, double angle, bool expand, const Sampling& sampling);

}  // namespace lockstep::transforms
