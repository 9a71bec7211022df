// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "transforms/affine.h"

namespace lockstep::transforms {

// In the order of torchvision, which draws an index.
enum class AugmentOp : std::uint8_t {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  auto_contrast,
  equalize,
  invert,
};

// All but invert, which only AutoAugment has.
constexpr std::int64_t kDrawnOps = 14;

// The greatest magnitudes.
struct AugmentSpace {
  double shear;
  double translate_x;  // pixels
  double translate_y;
  double rotate;  // degrees
  double color;
  double posterize;  // bits
};

// The policies' own for an image of that size, and TrivialAugmentWide's.
AugmentSpace narrow_space(const at::Tensor& image);
AugmentSpace wide_space();

bool has_magnitude(AugmentOp op);
// Whether the magnitude is negative half of the time.
bool is_signed(AugmentOp op);
// One of `bins` magnitudes.
double magnitude_of(AugmentOp op, std::int64_t bin, std::int64_t bins, const AugmentSpace& space);
// `sampling` has no center.
at::Tensor augment(const at::Tensor& image, AugmentOp op, double magnitude, const Sampling& sampling);

}  // namespace lockstep::transforms
