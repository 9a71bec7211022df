// SPDX-License-Identifier: BSD-3-Clause
#include "parity/transform_factory.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace lockstep::testing {
namespace {

using namespace transforms;  // NOLINT: this file makes nothing but transforms

template <typename T>
T number(const Value& value) {
  return static_cast<T>(value.as_double());
}

template <typename T>
std::vector<T> numbers(const Value& value) {
  if (value.is<None>()) return {};
  if (!value.is<List>() && !value.is<Tuple>()) return {number<T>(value)};
  std::vector<T> result;
  for (const auto& each : value.as_items()) result.push_back(number<T>(each));
  return result;
}

void assign(bool& option, const Value& value) { option = value.as_bool(); }
void assign(std::int64_t& option, const Value& value) { option = value.as_int(); }
void assign(double& option, const Value& value) { option = value.as_double(); }
void assign(Range& option, const Value& value) {
  const auto range = numbers<double>(value);
  option = {range.at(0), range.at(1)};
}
template <typename T>
void assign(Values<T>& option, const Value& value) {
  option = Values<T>(numbers<T>(value));
}
void assign(InterpolationMode& option, const Value& value) {
  const std::array<std::string_view, 4> names = {"nearest", "nearest-exact", "bilinear", "bicubic"};
  option = static_cast<InterpolationMode>(std::ranges::find(names, value.as_string()) - names.begin());
}
void assign(Literal<PaddingMode>& option, const Value& value) {
  option = parse_literal<PaddingMode>(value.as_string()).value();
}

void assign(ErasingValue& option, const Value& value) {
  option = value.is<std::string>() ? ErasingValue(value.as_string()) : ErasingValue(numbers<double>(value));
}

void assign(AutoAugmentPolicy& option, const Value& value) {
  const std::array<std::string_view, 3> names = {"imagenet", "cifar10", "svhn"};
  option = static_cast<AutoAugmentPolicy>(std::ranges::find(names, value.as_string()) - names.begin());
}

class Arguments {
 public:
  explicit Arguments(const Dict& values) : values_(values) {}

  template <typename T>
  T get(const char* name, T value = {}) const {
    set(name, value);
    return value;
  }
  template <typename T>
  const Arguments& set(const char* name, T& option) const {
    if (const auto* const value = values_.find(name)) assign(option, *value);
    return *this;
  }
  std::vector<double> list(const char* name) const { return numbers<double>(values_.at(name)); }
  at::ScalarType dtype() const { return std::get<at::ScalarType>(values_.at("dtype").variant()); }
  std::vector<Transform> transforms() const {
    std::vector<Transform> result;
    for (const auto& each : values_.at("transforms").as_items()) {
      result.push_back(make_transform(each.as_items()[0].as_string(), each.as_items()[1].as_dict()));
    }
    return result;
  }

 private:
  const Dict& values_;
};

using Maker = std::function<Transform(const Arguments&)>;

std::map<std::string, Maker> geometry_makers() {
  return {
      {"Resize",
       [](const Arguments& a) {
         ResizeOptions options;
         a.set("interpolation", options.interpolation).set("max_size", options.max_size);
         a.set("antialias", options.antialias);
         return Resize(a.get<transforms::Size>("size"), options);
       }},
      {"CenterCrop", [](const Arguments& a) { return CenterCrop(a.get<transforms::Size>("size")); }},
      {"RandomCrop",
       [](const Arguments& a) {
         RandomCropOptions options;
         a.set("padding", options.padding).set("pad_if_needed", options.pad_if_needed);
         a.set("fill", options.fill).set("padding_mode", options.padding_mode);
         return RandomCrop(a.get<transforms::Size>("size"), options);
       }},
      {"RandomResizedCrop",
       [](const Arguments& a) {
         RandomResizedCropOptions options;
         a.set("scale", options.scale).set("ratio", options.ratio);
         a.set("interpolation", options.interpolation).set("antialias", options.antialias);
         return RandomResizedCrop(a.get<transforms::Size>("size"), options);
       }},
      {"RandomHorizontalFlip",
       [](const Arguments& a) { return RandomHorizontalFlip(a.get<double>("p", 0.5)); }},
      {"RandomVerticalFlip", [](const Arguments& a) { return RandomVerticalFlip(a.get<double>("p", 0.5)); }},
      {"Pad",
       [](const Arguments& a) {
         PadOptions options;
         a.set("fill", options.fill).set("padding_mode", options.padding_mode);
         return Pad(a.get<Padding>("padding"), options);
       }},
  };
}

std::map<std::string, Maker> rotation_makers() {
  return {
      {"RandomRotation",
       [](const Arguments& a) {
         RandomRotationOptions options;
         a.set("interpolation", options.interpolation).set("expand", options.expand);
         a.set("center", options.center).set("fill", options.fill);
         return RandomRotation(a.get<Numbers>("degrees"), options);
       }},
      {"RandomAffine",
       [](const Arguments& a) {
         RandomAffineOptions options;
         a.set("translate", options.translate).set("scale", options.scale).set("shear", options.shear);
         a.set("interpolation", options.interpolation).set("fill", options.fill);
         a.set("center", options.center);
         return RandomAffine(a.get<Numbers>("degrees"), options);
       }},
  };
}

std::map<std::string, Maker> color_makers() {
  return {
      {"ColorJitter",
       [](const Arguments& a) {
         ColorJitterOptions options;
         a.set("brightness", options.brightness).set("contrast", options.contrast);
         a.set("saturation", options.saturation).set("hue", options.hue);
         return ColorJitter(options);
       }},
      {"Grayscale",
       [](const Arguments& a) { return Grayscale(a.get<std::int64_t>("num_output_channels", 1)); }},
      {"RandomGrayscale", [](const Arguments& a) { return RandomGrayscale(a.get<double>("p", 0.1)); }},
      {"GaussianBlur",
       [](const Arguments& a) {
         GaussianBlurOptions options;
         a.set("sigma", options.sigma);
         return GaussianBlur(a.get<transforms::Size>("kernel_size"), options);
       }},
      {"RandomErasing",
       [](const Arguments& a) {
         RandomErasingOptions options;
         a.set("p", options.p).set("scale", options.scale).set("ratio", options.ratio);
         a.set("value", options.value);
         return RandomErasing(options);
       }},
  };
}

std::map<std::string, Maker> augment_makers() {
  return {
      {"AutoAugment",
       [](const Arguments& a) {
         AutoAugmentOptions options;
         a.set("interpolation", options.interpolation).set("fill", options.fill);
         return AutoAugment(a.get<AutoAugmentPolicy>("policy"), options);
       }},
      {"RandAugment",
       [](const Arguments& a) {
         RandAugmentOptions options;
         a.set("num_ops", options.num_ops).set("magnitude", options.magnitude);
         a.set("num_magnitude_bins", options.num_magnitude_bins);
         a.set("interpolation", options.interpolation).set("fill", options.fill);
         return RandAugment(options);
       }},
      {"TrivialAugmentWide",
       [](const Arguments& a) {
         TrivialAugmentWideOptions options;
         a.set("num_magnitude_bins", options.num_magnitude_bins);
         a.set("interpolation", options.interpolation).set("fill", options.fill);
         return TrivialAugmentWide(options);
       }},
  };
}

std::map<std::string, Maker> other_makers() {
  return {
      {"ToTensor", [](const Arguments&) { return ToTensor(); }},
      {"ToDtype", [](const Arguments& a) { return ToDtype(a.dtype(), {.scale = a.get<bool>("scale")}); }},
      {"Normalize", [](const Arguments& a) { return Normalize(a.list("mean"), a.list("std")); }},
      {"Compose", [](const Arguments& a) { return Compose(a.transforms()); }},
      {"RandomApply",
       [](const Arguments& a) { return RandomApply(a.transforms(), a.get<double>("p", 0.5)); }},
      {"RandomChoice", [](const Arguments& a) { return RandomChoice(a.transforms(), a.get<Numbers>("p")); }},
  };
}

}  // namespace

Transform make_transform(const std::string& name, const Dict& arguments) {
  static const auto makers = [] {
    auto all = geometry_makers();
    all.merge(rotation_makers());
    all.merge(color_makers());
    all.merge(augment_makers());
    all.merge(other_makers());
    return all;
  }();
  const auto maker = makers.find(name);
  if (maker == makers.end()) throw std::runtime_error("transform_factory.cpp: no transform " + name);
  return maker->second(Arguments(arguments));
}

transforms::MixOptions mix_options(const Dict& arguments) {
  transforms::MixOptions options;
  if (const auto* const alpha = arguments.find("alpha")) options.alpha = alpha->as_double();
  if (const auto* const classes = arguments.find("num_classes")) options.num_classes = classes->as_int();
  return options;
}

}  // namespace lockstep::testing
