// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/geometry.h>
#include <lockstep/transforms/transform.h>

// Policies of operations on colours and geometry, for images of 1 or 3 channels.
namespace lockstep::transforms {

enum class AutoAugmentPolicy : std::uint8_t { imagenet, cifar10, svhn };

struct AutoAugmentOptions {
  InterpolationMode interpolation = InterpolationMode::nearest;  ///< nearest or bilinear
  Numbers fill = {};  ///< around moved images: one number, one per channel, or none for black
};

/// One of 25 pairs of operations that were learned on that data set. torchvision: v2.AutoAugment.
class AutoAugment {
 public:
  explicit AutoAugment(AutoAugmentPolicy policy = AutoAugmentPolicy::imagenet,
                       AutoAugmentOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  AutoAugmentPolicy policy_;
  AutoAugmentOptions options_;
};

struct RandAugmentOptions {
  std::int64_t num_ops = 2;
  std::int64_t magnitude = 9;  ///< of all operations, in 0 .. num_magnitude_bins-1
  std::int64_t num_magnitude_bins = 31;
  InterpolationMode interpolation = InterpolationMode::nearest;  ///< nearest or bilinear
  Numbers fill = {};  ///< around moved images: one number, one per channel, or none for black
};

/// Operations of equal probability and one magnitude. torchvision: v2.RandAugment.
class RandAugment {
 public:
  explicit RandAugment(RandAugmentOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  RandAugmentOptions options_;
};

struct TrivialAugmentWideOptions {
  std::int64_t num_magnitude_bins = 31;
  InterpolationMode interpolation = InterpolationMode::nearest;  ///< nearest or bilinear
  Numbers fill = {};  ///< around moved images: one number, one per channel, or none for black
};

/// One operation of a random magnitude. torchvision: v2.TrivialAugmentWide.
class TrivialAugmentWide {
 public:
  explicit TrivialAugmentWide(TrivialAugmentWideOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  TrivialAugmentWideOptions options_;
};

}  // namespace lockstep::transforms
