// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <lockstep/transforms/transform.h>

namespace lockstep::transforms {

/// uint8 to contiguous float32 in [0, 1]: value / 255. Other images stay as they are. torchvision:
/// transforms.ToTensor, which takes uint8 arrays.
class ToTensor {
 public:
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const { return "ToTensor()"; }
};

struct ToDtypeOptions {
  bool scale = false;  ///< map the range of the old dtype to that of the new one: [0, 255] and [0.0, 1.0]
};

/// To another dtype: uint8 or a floating-point one. torchvision: v2.ToDtype.
class ToDtype {
 public:
  /// Throws ArgumentError for other dtypes.
  explicit ToDtype(at::ScalarType dtype, ToDtypeOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;
  at::ScalarType dtype() const { return dtype_; }
  bool scale() const { return options_.scale; }

 private:
  at::ScalarType dtype_;
  ToDtypeOptions options_;
};

struct NormalizeOptions {
  bool inplace = false;  ///< overwrite the image
};

/// (x - mean) / std per channel, for floating-point images. torchvision: v2.Normalize.
class Normalize {
 public:
  /// One value for all channels, or one per channel. Throws ArgumentError when a list is empty or a std is 0.
  Normalize(std::vector<double> mean, std::vector<double> std, NormalizeOptions options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  std::string to_string() const;
  /// The channels that an image needs; 1: any number.
  std::int64_t channels() const;

 private:
  std::vector<double> mean_;
  std::vector<double> std_;
  NormalizeOptions options_;
};

/// ToTensor or ToDtype followed by Normalize as one pass over uint8 images, into contiguous float32. Has the
/// bits of the two transforms. Compose makes one where they follow each other.
class NormalizedConversion {
 public:
  NormalizedConversion(ToTensor conversion, Normalize normalize);
  NormalizedConversion(ToDtype conversion, Normalize normalize);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;

 private:
  Transform conversion_;
  Normalize normalize_;
  at::Tensor values_;  // float32 [channels or 1, 256]: the float of each byte; undefined: two passes
};

}  // namespace lockstep::transforms
