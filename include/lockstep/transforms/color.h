// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/transform.h>

namespace lockstep::transforms {

/// Each is {least, greatest} of a factor, or one number for {1 - number, 1 + number}, but not below 0; for
/// hue, a part of the circle of hues in [-0.5, 0.5], one number is {-number, number}.
struct ColorJitterOptions {
  Numbers brightness = {};
  Numbers contrast = {};
  Numbers saturation = {};
  Numbers hue = {};
};

/// Changes the colours of images of 1 or 3 channels, in a random order. torchvision: v2.ColorJitter.
class ColorJitter {
 public:
  explicit ColorJitter(const ColorJitterOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  std::optional<Range> brightness_;
  std::optional<Range> contrast_;
  std::optional<Range> saturation_;
  std::optional<Range> hue_;
};

/// Images of 1 or 3 channels. torchvision: v2.Grayscale.
class Grayscale {
 public:
  /// 1 channel, or 3 equal ones.
  explicit Grayscale(std::int64_t num_output_channels = 1);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  std::int64_t num_output_channels_;
};

/// Gray with probability p; the number of channels stays. torchvision: v2.RandomGrayscale.
class RandomGrayscale {
 public:
  explicit RandomGrayscale(double p = 0.1);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  double p_;
};

struct GaussianBlurOptions {
  Numbers sigma = {0.1, 2.0};  ///< standard deviation in pixels: one, or {least, greatest}
};

/// torchvision: v2.GaussianBlur.
class GaussianBlur {
 public:
  /// Odd numbers: one, or {of columns, of rows}. An image needs more than half of each.
  explicit GaussianBlur(Size kernel_size, GaussianBlurOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  Size kernel_size_;
  Range sigma_;
};

/// One number, one per channel, or "random": a normal number for each value of the rectangle.
struct ErasingValue : Numbers {
  using Numbers::Numbers;
  ErasingValue(std::string_view random);  // NOLINT: implicit by design
  ErasingValue(const char* random) : ErasingValue(std::string_view(random)) {}
};

struct RandomErasingOptions {
  double p = 0.5;
  Range scale = {0.02, 0.33};  ///< of the rectangle's area, relative to the image
  Range ratio = {0.3, 3.3};    ///< of its height to its width
  ErasingValue value = 0;
  bool inplace = false;  ///< overwrite the image
};

/// Fills a rectangle with probability p. torchvision: v2.RandomErasing.
class RandomErasing {
 public:
  explicit RandomErasing(RandomErasingOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  RandomErasingOptions options_;
  Range log_ratio_;
};

}  // namespace lockstep::transforms
