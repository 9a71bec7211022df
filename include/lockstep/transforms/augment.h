// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/geometry.h>

// Policies of operations on colours and geometry, for images of 1 or 3 channels.
// Transforms of a batch: each sample is mixed with the one before it.
namespace lockstep::transforms {

/// Each is {least, greatest} of a factor, or one number for {1 - number, 1 + number}, but not below 0; for
/// hue, a part of the circle of hues in [-0.5, 0.5], one number is {-number, number}.
struct ColorJitterOptions {
  Numbers brightness = {};  ///< factor of all values
  Numbers contrast = {};    ///< factor of the distance from the mean gray
  Numbers saturation = {};  ///< factor of the distance from the gray of the pixel
  Numbers hue = {};         ///< shift of the hue
};

/// Changes the colours of images of 1 or 3 channels, in a random order. torchvision: v2.ColorJitter.
class ColorJitter {
 public:
  explicit ColorJitter(const ColorJitterOptions& options = {});
  /// With torchvision's options in its order.
  explicit ColorJitter(std::floating_point auto brightness, Numbers contrast = {}, Numbers saturation = {},
                       Numbers hue = {})
      : ColorJitter(ColorJitterOptions{.brightness = brightness,
                                       .contrast = std::move(contrast),
                                       .saturation = std::move(saturation),
                                       .hue = std::move(hue)}) {}
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
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
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  std::int64_t num_output_channels_;
};

/// Gray with probability p; the number of channels stays. torchvision: v2.RandomGrayscale.
class RandomGrayscale {
 public:
  explicit RandomGrayscale(double p = 0.1);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  double p_;
};

/// Options of GaussianBlur, with torchvision's names and defaults.
struct GaussianBlurOptions {
  Numbers sigma = {0.1, 2.0};  ///< standard deviation in pixels: one, or {least, greatest}
};

/// torchvision: v2.GaussianBlur.
class GaussianBlur {
 public:
  /// Odd numbers: one, or {of columns, of rows}. An image needs more than half of each.
  explicit GaussianBlur(Size kernel_size, const GaussianBlurOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
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

/// Options of RandomErasing, with torchvision's names and defaults.
struct RandomErasingOptions {
  double p = 0.5;              ///< probability that a rectangle is filled
  Range scale = {0.02, 0.33};  ///< of the rectangle's area, relative to the image
  Range ratio = {0.3, 3.3};    ///< of its height to its width
  ErasingValue value = 0;      ///< what fills the rectangle
  bool inplace = false;        ///< overwrite the image
};

/// Fills a rectangle with probability p. torchvision: v2.RandomErasing.
class RandomErasing {
 public:
  explicit RandomErasing(const RandomErasingOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  RandomErasingOptions options_;
  Range log_ratio_;
};

/// The data set on which the operations of AutoAugment were learned. torchvision: v2.AutoAugmentPolicy.
enum class AutoAugmentPolicy : std::uint8_t {
  IMAGENET,  ///< ImageNet
  CIFAR10,   ///< CIFAR-10
  SVHN,      ///< Street View House Numbers
};

/// Options of AutoAugment, with torchvision's names and defaults.
struct AutoAugmentOptions {
  InterpolationMode interpolation = InterpolationMode::NEAREST;  ///< nearest or bilinear
  Numbers fill = {};  ///< around moved images: one number, one per channel, or none for black
};

/// One of 25 pairs of operations that were learned on that data set. torchvision: v2.AutoAugment.
class AutoAugment {
 public:
  explicit AutoAugment(AutoAugmentPolicy policy = AutoAugmentPolicy::IMAGENET,
                       const AutoAugmentOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  AutoAugmentPolicy policy_;
  AutoAugmentOptions options_;
};

/// Options of RandAugment, with torchvision's names and defaults.
struct RandAugmentOptions {
  std::int64_t num_ops = 2;              ///< operations applied to an image
  std::int64_t magnitude = 9;            ///< of all operations, in 0 .. num_magnitude_bins-1
  std::int64_t num_magnitude_bins = 31;  ///< number of magnitudes between none and the greatest
  InterpolationMode interpolation = InterpolationMode::NEAREST;  ///< nearest or bilinear
  Numbers fill = {};  ///< around moved images: one number, one per channel, or none for black
};

/// Operations of equal probability and one magnitude. torchvision: v2.RandAugment.
class RandAugment {
 public:
  explicit RandAugment(const RandAugmentOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  RandAugmentOptions options_;
};

/// Options of TrivialAugmentWide, with torchvision's names and defaults.
struct TrivialAugmentWideOptions {
  std::int64_t num_magnitude_bins = 31;  ///< number of magnitudes between none and the greatest
  InterpolationMode interpolation = InterpolationMode::NEAREST;  ///< nearest or bilinear
  Numbers fill = {};  ///< around moved images: one number, one per channel, or none for black
};

/// One operation of a random magnitude. torchvision: v2.TrivialAugmentWide.
class TrivialAugmentWide {
 public:
  explicit TrivialAugmentWide(const TrivialAugmentWideOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  TrivialAugmentWideOptions options_;
};

/// Images [n, channels, height, width] and float labels [n, classes].
using MixedBatch = std::pair<at::Tensor, at::Tensor>;

/// Options of MixUp and CutMix, with torchvision's names and defaults.
struct MixOptions {
  double alpha = 1.0;  ///< the part of a sample has the distribution Beta(alpha, alpha)
  std::optional<std::int64_t> num_classes = {};  ///< needed for labels of shape [n]
};

/// Weighted sums of images and of labels: `auto [images, labels] = mix_up(images, labels)`. torchvision:
/// v2.MixUp.
class MixUp {
 public:
  explicit MixUp(const MixOptions& options = {});
  /// `images` of floats [n, channels, height, width], `labels` int64 [n] or probabilities [n, classes].
  MixedBatch operator()(const at::Tensor& images, const at::Tensor& labels,
                        const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  MixOptions options_;
};

/// A rectangle of each image is that of the other; labels are weighted by area. torchvision: v2.CutMix.
class CutMix {
 public:
  explicit CutMix(const MixOptions& options = {});
  /// `images` uint8 or float [n, channels, height, width], `labels` int64 [n] or probabilities [n, classes].
  MixedBatch operator()(const at::Tensor& images, const at::Tensor& labels,
                        const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  MixOptions options_;
};

}  // namespace lockstep::transforms
