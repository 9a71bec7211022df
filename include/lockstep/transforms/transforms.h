// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <lockstep/transforms/augment.h>
#include <lockstep/transforms/geometry.h>

namespace lockstep::transforms {

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

/// uint8 to contiguous float32 in [0, 1]: value / 255. Other images stay as they are. torchvision:
/// transforms.ToTensor, which takes uint8 arrays.
class ToTensor {
 public:
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const { return "ToTensor()"; }
};

/// Options of ToDtype, with torchvision's names and defaults.
struct ToDtypeOptions {
  bool scale = false;  ///< map the range of the old dtype to that of the new one: [0, 255] and [0.0, 1.0]
};

/// To another dtype: uint8 or a floating-point one. torchvision: v2.ToDtype.
class ToDtype {
 public:
  /// Throws ArgumentError for other dtypes.
  explicit ToDtype(at::ScalarType dtype, const ToDtypeOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;
  /// The dtype of the results.
  at::ScalarType dtype() const { return dtype_; }
  /// Whether the range of the old dtype is mapped to that of the new one.
  bool scale() const { return options_.scale; }

 private:
  at::ScalarType dtype_;
  ToDtypeOptions options_;
};

/// Options of Normalize, with torchvision's names and defaults.
struct NormalizeOptions {
  bool inplace = false;  ///< overwrite the image
};

/// All arguments of Normalize by name.
struct NormalizeArguments {
  std::vector<double> mean = {};  ///< one value for all channels, or one per channel
  std::vector<double> std = {};   ///< one value for all channels, or one per channel
  bool inplace = false;           ///< overwrite the image
};

/// (x - mean) / std per channel, for floating-point images. torchvision: v2.Normalize.
class Normalize {
 public:
  /// One value for all channels, or one per channel. Throws ArgumentError when a list is empty or a std is 0.
  Normalize(std::vector<double> mean, std::vector<double> std, const NormalizeOptions& options = {});
  /// One value for all channels: `Normalize(0.1307, 0.3081)`.
  template <typename Mean, typename Std>
    requires(std::is_arithmetic_v<Mean> && std::is_arithmetic_v<Std>)
  Normalize(Mean mean, Std std, const NormalizeOptions& options = {})
      : Normalize(std::vector{static_cast<double>(mean)}, std::vector{static_cast<double>(std)}, options) {}
  /// `Normalize({.mean = {0.5, 0.4, 0.4}, .std = {0.2, 0.2, 0.2}})`.
  template <typename = void>  // so that a list without names is not ambiguous
  explicit Normalize(const NormalizeArguments& arguments)
      : Normalize(arguments.mean, arguments.std, NormalizeOptions{.inplace = arguments.inplace}) {}
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;
  /// One value for all channels, or one per channel.
  const std::vector<double>& mean() const { return mean_; }
  /// One value for all channels, or one per channel.
  const std::vector<double>& std() const { return std_; }
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

namespace detail {

/// Python's representation of a module that lists these transforms.
std::string module_text(const std::string& name, const std::vector<std::string>& transforms);

template <typename T>
concept Conversion = std::same_as<T, ToTensor> || std::same_as<T, ToDtype>;

inline std::tuple<> steps_of() { return {}; }
template <typename First, typename... Others>
auto steps_of(First first, Others... others);
template <Conversion First, typename... Others>
auto steps_of(First conversion, Normalize normalize, Others... others);

/// The transforms in order, a conversion and its normalization as one step.
template <typename First, typename... Others>
auto steps_of(First first, Others... others) {
  return std::tuple_cat(std::tuple<First>(std::move(first)), steps_of(std::move(others)...));
}

template <Conversion First, typename... Others>
auto steps_of(First conversion, Normalize normalize, Others... others) {
  return std::tuple_cat(std::tuple(NormalizedConversion(std::move(conversion), std::move(normalize))),
                        steps_of(std::move(others)...));
}

}  // namespace detail

/// Transforms one after the other, of types that the compiler knows:
/// `Compose(RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(), Normalize(mean, std))`.
/// ToTensor (or ToDtype) and Normalize run as one pass. torchvision: v2.Compose.
template <ImageTransform... Ts>
class Compose {
 public:
  explicit Compose(Ts... transforms)
      : text_(detail::module_text("Compose", {transforms.to_string()...})),
        steps_(detail::steps_of(std::move(transforms)...)) {}

  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const {
    auto result = image;
    std::apply([&](const auto&... steps) { ((result = steps(result, generator)), ...); }, steps_);
    return result;
  }
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const {
    return std::apply(
        [&](const auto& first, const auto&... steps) {
          auto result = apply(first, image, generator);
          ((result = steps(result, generator)), ...);
          return result;
        },
        steps_);
  }
  /// The transform as torchvision prints it.
  std::string to_string() const { return text_; }

 private:
  std::string text_;
  decltype(detail::steps_of(std::declval<Ts>()...)) steps_;
};

/// For a list that is built at run time: `Compose(std::vector<Transform>)`, or Compose({a, b}).
template <>
class Compose<> {
 public:
  /// Throws ArgumentError when the list is empty.
  explicit Compose(std::vector<Transform> transforms);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const;
  std::string to_string() const { return text_; }

 private:
  std::string text_;
  std::vector<Transform> steps_;
};

Compose(std::vector<Transform>) -> Compose<>;

/// Functions of an image take part as Transforms.
template <typename... Ts>
  requires(sizeof...(Ts) > 0 && ((ImageTransform<Ts> || ImageFunction<Ts>)&&...))
Compose(Ts...) -> Compose<std::conditional_t<ImageTransform<Ts>, Ts, Transform>...>;

/// Applies all transforms with probability p, or none. Draws one number, then what they draw. torchvision:
/// v2.RandomApply.
class RandomApply {
 public:
  /// Throws ArgumentError when the list is empty or p is outside [0, 1].
  explicit RandomApply(std::vector<Transform> transforms, double p = 0.5);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const { return text_; }

 private:
  std::string text_;
  Compose<> transforms_;
  double p_;
};

/// Applies one transform of the list. Draws its index, then what it draws. torchvision: v2.RandomChoice.
class RandomChoice {
 public:
  /// `p`: the probabilities, scaled to sum to 1; by default all are equal. Throws ArgumentError when the list
  /// is empty, or p has another length or negative numbers or only zeros.
  explicit RandomChoice(std::vector<Transform> transforms, Numbers p = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  std::vector<Transform> transforms_;
  std::vector<double> p_;
};

/// torchvision's name of these transforms: `v2::Compose`.
namespace v2 = ::lockstep::transforms;

}  // namespace lockstep::transforms
