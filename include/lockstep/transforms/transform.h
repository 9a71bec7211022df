// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

/// torchvision.transforms.v2 for tensors, with its names, arguments, defaults, pixels and random numbers.
///
/// An image is uint8 or float, [channels, height, width] or with leading batch dimensions, of any strides.
/// The result may share the memory of the image. Transforms are values without state between calls; calls on
/// several threads need a generator each. Without a generator they draw from LibTorch's default CPU
/// generator, which torch::manual_seed() seeds, as torchvision does. Wrong arguments and images throw
/// ArgumentError.
namespace lockstep::transforms {

/// The generator of a transform's random numbers, or none for LibTorch's default CPU generator.
using OptionalGenerator = std::optional<at::Generator>;

/// One number, a list, or none: what Python's functions take as `int`, `(int, int)` or None.
template <typename T>
struct Values : std::vector<T> {
  Values() = default;
  Values(std::nullopt_t) {}
  template <typename Number>
    requires(std::is_arithmetic_v<Number> && (std::integral<Number> || std::floating_point<T>))
  Values(Number value) : std::vector<T>{static_cast<T>(value)} {}  // NOLINT: implicit by design
  Values(std::initializer_list<T> values) : std::vector<T>(values) {}
  explicit Values(std::vector<T> values) : std::vector<T>(std::move(values)) {}
};

/// One edge, or {height, width}.
using Size = Values<std::int64_t>;
/// The same number of pixels on all sides, {left and right, top and bottom}, or {left, top, right, bottom}.
using Padding = Values<std::int64_t>;
/// A number, a list of numbers, or none.
using Numbers = Values<double>;
/// {least, greatest}.
using Range = std::pair<double, double>;

/// The size of an image in pixels.
struct ImageSize {
  std::int64_t height = 0;  ///< rows of pixels
  std::int64_t width = 0;   ///< columns of pixels
};

/// A rectangle of pixels. It may extend beyond the image.
struct Box {
  std::int64_t top = 0;     ///< first row
  std::int64_t left = 0;    ///< first column
  std::int64_t height = 0;  ///< rows of pixels
  std::int64_t width = 0;   ///< columns of pixels
  bool operator==(const Box&) const = default;
};

/// An image that is decoded when a transform asks for it, so that a crop decodes only what it takes.
struct EncodedImage {
  std::int64_t height = 0;  ///< pixels
  std::int64_t width = 0;   ///< pixels
  /// Decodes the pixels of a box. `result`: the size to which the caller resizes them, if any. The decoder
  /// may then return fewer pixels than the box has, but not fewer than the result.
  std::function<at::Tensor(const Box& box, const std::optional<ImageSize>& result)> decode;

  /// Decodes the whole image.
  at::Tensor decode_all() const { return decode({.height = height, .width = width}, std::nullopt); }
};

/// A function of an image that prints itself as torchvision's transform does.
template <typename T>
concept ImageTransform =
    requires(const T& transform, const at::Tensor& image, const OptionalGenerator& generator) {
      { transform(image, generator) } -> std::convertible_to<at::Tensor>;
      { transform.to_string() } -> std::convertible_to<std::string>;
    };

/// Applies a transform to an image that is not decoded yet.
template <typename T>
at::Tensor apply(const T& transform, const EncodedImage& image, const OptionalGenerator& generator) {
  if constexpr (requires { transform(image, generator); }) {
    return transform(image, generator);
  } else {
    return transform(image.decode_all(), generator);
  }
}

/// A function of an image, or of an image and a generator.
template <typename F>
concept ImageFunction =
    std::is_invocable_r_v<at::Tensor, const F&, const at::Tensor&> ||
    std::is_invocable_r_v<at::Tensor, const F&, const at::Tensor&, const OptionalGenerator&>;

/// Any ImageTransform or ImageFunction. Copies share it.
class Transform {
 public:
  template <typename T>
    requires(!std::same_as<T, Transform> && (ImageTransform<T> || ImageFunction<T>))
  Transform(T transform)  // NOLINT: implicit by design
      : held_(std::make_shared<Held<T>>(std::move(transform))) {}

  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const {
    return held_->apply(image, generator);
  }
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const {
    return held_->apply(image, generator);
  }
  /// "Lambda()" for a plain function.
  std::string to_string() const { return held_->to_string(); }
  /// The transform as its own type, or nullptr when it has another type.
  template <typename T>
  const T* target() const {
    const auto* const held = dynamic_cast<const Held<T>*>(held_.get());
    return held == nullptr ? nullptr : &held->transform;
  }

 private:
  struct AnyHeld {
    virtual ~AnyHeld() = default;
    virtual at::Tensor apply(const at::Tensor& image, const OptionalGenerator& generator) const = 0;
    virtual at::Tensor apply(const EncodedImage& image, const OptionalGenerator& generator) const = 0;
    virtual std::string to_string() const = 0;
  };

  template <typename T>
  struct Held : AnyHeld {
    explicit Held(T value) : transform(std::move(value)) {}
    at::Tensor apply(const at::Tensor& image, const OptionalGenerator& generator) const override {
      if constexpr (std::is_invocable_v<const T&, const at::Tensor&, const OptionalGenerator&>) {
        return std::invoke(transform, image, generator);
      } else {
        return std::invoke(transform, image);
      }
    }
    at::Tensor apply(const EncodedImage& image, const OptionalGenerator& generator) const override {
      if constexpr (ImageTransform<T>) {
        return transforms::apply(transform, image, generator);
      } else {
        return apply(image.decode_all(), generator);
      }
    }
    std::string to_string() const override {
      if constexpr (ImageTransform<T>) {
        return transform.to_string();
      } else {
        return "Lambda()";
      }
    }
    T transform;
  };

  std::shared_ptr<const AnyHeld> held_;
};

}  // namespace lockstep::transforms
