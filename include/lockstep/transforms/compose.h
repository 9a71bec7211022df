// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/convert.h>
#include <lockstep/transforms/transform.h>

namespace lockstep::transforms {
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
  std::string to_string() const { return text_; }

 private:
  std::string text_;
  decltype(detail::steps_of(std::declval<Ts>()...)) steps_;
};

/// The same for a list that is built at run time: `Compose(std::vector<Transform>)`, or Compose({a, b}).
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

/// Applies all transforms with probability p, or none. Draws one number, then what they draw. torchvision:
/// v2.RandomApply.
class RandomApply {
 public:
  /// Throws ArgumentError when the list is empty or p is outside [0, 1].
  explicit RandomApply(std::vector<Transform> transforms, double p = 0.5);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
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
  std::string to_string() const;

 private:
  std::vector<Transform> transforms_;
  std::vector<double> p_;
};

}  // namespace lockstep::transforms
