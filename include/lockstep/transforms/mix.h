// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/transform.h>

// Transforms of a batch: each sample is mixed with the one before it.
namespace lockstep::transforms {

/// Images [n, channels, height, width] and float labels [n, classes].
using MixedBatch = std::pair<at::Tensor, at::Tensor>;

struct MixOptions {
  double alpha = 1.0;  ///< the part of a sample has the distribution Beta(alpha, alpha)
  std::optional<std::int64_t> num_classes = {};  ///< needed for labels of shape [n]
};

/// Weighted sums of images and of labels: `auto [images, labels] = mix_up(images, labels)`. torchvision:
/// v2.MixUp.
class MixUp {
 public:
  explicit MixUp(MixOptions options = {});
  /// `images` of floats [n, channels, height, width], `labels` int64 [n] or probabilities [n, classes].
  MixedBatch operator()(const at::Tensor& images, const at::Tensor& labels,
                        const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  MixOptions options_;
};

/// A rectangle of each image is that of the other; labels are weighted by area. torchvision: v2.CutMix.
class CutMix {
 public:
  explicit CutMix(MixOptions options = {});
  /// `images` uint8 or float [n, channels, height, width], `labels` int64 [n] or probabilities [n, classes].
  MixedBatch operator()(const at::Tensor& images, const at::Tensor& labels,
                        const OptionalGenerator& generator = {}) const;
  std::string to_string() const;

 private:
  MixOptions options_;
};

}  // namespace lockstep::transforms
