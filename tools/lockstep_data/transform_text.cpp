// SPDX-License-Identifier: BSD-3-Clause
#include "transform_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "python_call.h"

namespace lockstep::data_tool {
namespace {

using namespace transforms;

Transform transform_of(const Value& value);

// Conversions of a value to the type of an argument; false for a value of another type.
bool convert(const Value& value, double& out) {
  const auto* const number = std::get_if<double>(&value.held);
  if (number != nullptr) out = *number;
  return number != nullptr;
}

bool convert(const Value& value, std::int64_t& out) {
  constexpr double kMost = 1e15;  // exact as a double
  const auto* const number = std::get_if<double>(&value.held);
  if (number == nullptr || *number != std::floor(*number) || std::abs(*number) > kMost) return false;
  out = static_cast<std::int64_t>(*number);
  return true;
}

bool convert(const Value& value, bool& out) {
  const auto* const flag = std::get_if<bool>(&value.held);
  if (flag != nullptr) out = *flag;
  return flag != nullptr;
}

template <typename T>
bool convert(const Value& value, std::vector<T>& out) {
  out.clear();
  if (std::holds_alternative<Value::None>(value.held)) return true;
  const auto* const list = std::get_if<std::vector<Value>>(&value.held);
  if (list == nullptr) return convert(value, out.emplace_back());
  return std::ranges::all_of(*list, [&](const Value& each) { return convert(each, out.emplace_back()); });
}

bool convert(const Value& value, Range& out) {
  std::vector<double> numbers;
  if (!convert(value, numbers) || numbers.size() != 2) return false;
  out = {numbers[0], numbers[1]};
  return true;
}

bool convert(const Value& value, ErasingValue& out) {
  const auto* const text = std::get_if<std::string>(&value.held);
  if (text == nullptr) return convert(value, static_cast<std::vector<double>&>(out));
  out = ErasingValue(*text);
  return true;
}

bool convert(const Value& value, std::vector<Transform>& out) {
  const auto* const list = std::get_if<std::vector<Value>>(&value.held);
  if (list == nullptr) return false;
  for (const auto& each : *list) out.push_back(transform_of(each));
  return true;
}

// A name such as InterpolationMode.BILINEAR, or a string such as 'reflect'; letter case is ignored.
template <typename T>
bool find(const Value& value, const std::map<std::string_view, T>& names, T& out) {
  const auto* const name = std::get_if<Value::Name>(&value.held);
  const auto* const string = std::get_if<std::string>(&value.held);
  if (name == nullptr && string == nullptr) return false;
  auto text = name != nullptr ? name->text.substr(name->text.rfind('.') + 1) : *string;
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto found = names.find(text);
  if (found != names.end()) out = found->second;
  return found != names.end();
}

bool convert(const Value& value, InterpolationMode& out) {
  return find(value,
              {{"nearest", InterpolationMode::nearest},
               {"nearest_exact", InterpolationMode::nearest_exact},
               {"nearest-exact", InterpolationMode::nearest_exact},
               {"bilinear", InterpolationMode::bilinear},
               {"bicubic", InterpolationMode::bicubic}},
              out);
}

bool convert(const Value& value, PaddingMode& out) {
  return find(value,
              {{"constant", PaddingMode::constant},
               {"edge", PaddingMode::edge},
               {"reflect", PaddingMode::reflect},
               {"symmetric", PaddingMode::symmetric}},
              out);
}

bool convert(const Value& value, AutoAugmentPolicy& out) {
  return find(value,
              {{"imagenet", AutoAugmentPolicy::imagenet},
               {"cifar10", AutoAugmentPolicy::cifar10},
               {"svhn", AutoAugmentPolicy::svhn}},
              out);
}

bool convert(const Value& value, at::ScalarType& out) {
  return find(value,
              {{"uint8", at::kByte},
               {"float16", at::kHalf},
               {"bfloat16", at::kBFloat16},
               {"float32", at::kFloat},
               {"float", at::kFloat},
               {"float64", at::kDouble}},
              out);
}

// The arguments of a call by the names of its parameters.
class Arguments {
 public:
  Arguments(const Call& call, const std::vector<std::string>& parameters) : call_(call) {
    if (call.positional.size() > parameters.size()) {
      throw ArgumentError(fmt::format("{}: takes at most {} arguments, but has {}", call.name,
                                      parameters.size(), call.positional.size()));
    }
    for (const auto& [name, value] : call.keywords) {
      const auto parameter = std::ranges::find(parameters, name);
      if (parameter == parameters.end()) {
        throw ArgumentError(fmt::format("{}: has no argument {}; its arguments are {}", call.name, name,
                                        fmt::join(parameters, ", ")));
      }
      if (static_cast<std::size_t>(parameter - parameters.begin()) < call.positional.size()) {
        throw ArgumentError(fmt::format("{}: argument {} is repeated", call.name, name));
      }
      values_.emplace(name, &value);
    }
    for (std::size_t i = 0; i < call.positional.size(); ++i)
      values_.emplace(parameters[i], &call.positional[i]);
  }

  // Leaves `out` as it is without the argument.
  template <typename T>
  const Arguments& read(const std::string& name, T& out) const {
    const auto found = values_.find(name);
    if (found != values_.end() && !convert(*found->second, out)) {
      throw ArgumentError(fmt::format("{}: the value of {} has the wrong type", call_.name, name));
    }
    return *this;
  }
  bool has(const std::string& name) const { return values_.contains(name); }
  template <typename T>
  T required(const std::string& name) const {
    if (!has(name)) throw ArgumentError(fmt::format("{}: needs the argument {}", call_.name, name));
    T value{};
    read(name, value);
    return value;
  }

 private:
  const Call& call_;
  std::map<std::string, const Value*> values_{};
};

template <typename T>
Transform with_p(const Call& call) {
  const Arguments arguments(call, {"p"});
  return arguments.has("p") ? T(arguments.required<double>("p")) : T();
}

Transform resize(const Call& call) {
  const Arguments arguments(call, {"size", "interpolation", "max_size", "antialias"});
  ResizeOptions options;
  arguments.read("interpolation", options.interpolation)
      .read("max_size", options.max_size)
      .read("antialias", options.antialias);
  return Resize(arguments.required<Size>("size"), options);
}

Transform center_crop(const Call& call) {
  return CenterCrop(Arguments(call, {"size"}).required<Size>("size"));
}

Transform random_crop(const Call& call) {
  const Arguments arguments(call, {"size", "padding", "pad_if_needed", "fill", "padding_mode"});
  RandomCropOptions options;
  arguments.read("padding", options.padding)
      .read("pad_if_needed", options.pad_if_needed)
      .read("fill", options.fill)
      .read("padding_mode", options.padding_mode);
  return RandomCrop(arguments.required<Size>("size"), options);
}

Transform random_resized_crop(const Call& call) {
  const Arguments arguments(call, {"size", "scale", "ratio", "interpolation", "antialias"});
  RandomResizedCropOptions options;
  arguments.read("scale", options.scale)
      .read("ratio", options.ratio)
      .read("interpolation", options.interpolation)
      .read("antialias", options.antialias);
  return RandomResizedCrop(arguments.required<Size>("size"), options);
}

Transform pad(const Call& call) {
  const Arguments arguments(call, {"padding", "fill", "padding_mode"});
  PadOptions options;
  arguments.read("fill", options.fill).read("padding_mode", options.padding_mode);
  return Pad(arguments.required<Padding>("padding"), options);
}

Transform random_rotation(const Call& call) {
  const Arguments arguments(call, {"degrees", "interpolation", "expand", "center", "fill"});
  RandomRotationOptions options;
  arguments.read("interpolation", options.interpolation)
      .read("expand", options.expand)
      .read("center", options.center)
      .read("fill", options.fill);
  return RandomRotation(arguments.required<Numbers>("degrees"), options);
}

Transform random_affine(const Call& call) {
  const Arguments arguments(call,
                            {"degrees", "translate", "scale", "shear", "interpolation", "fill", "center"});
  RandomAffineOptions options;
  arguments.read("translate", options.translate)
      .read("scale", options.scale)
      .read("shear", options.shear)
      .read("interpolation", options.interpolation)
      .read("fill", options.fill)
      .read("center", options.center);
  return RandomAffine(arguments.required<Numbers>("degrees"), options);
}

Transform color_jitter(const Call& call) {
  ColorJitterOptions options;
  Arguments(call, {"brightness", "contrast", "saturation", "hue"})
      .read("brightness", options.brightness)
      .read("contrast", options.contrast)
      .read("saturation", options.saturation)
      .read("hue", options.hue);
  return ColorJitter(options);
}

Transform grayscale(const Call& call) {
  std::int64_t channels = 1;
  Arguments(call, {"num_output_channels"}).read("num_output_channels", channels);
  return Grayscale(channels);
}

Transform gaussian_blur(const Call& call) {
  const Arguments arguments(call, {"kernel_size", "sigma"});
  GaussianBlurOptions options;
  arguments.read("sigma", options.sigma);
  return GaussianBlur(arguments.required<Size>("kernel_size"), options);
}

Transform random_erasing(const Call& call) {
  RandomErasingOptions options;
  Arguments(call, {"p", "scale", "ratio", "value", "inplace"})
      .read("p", options.p)
      .read("scale", options.scale)
      .read("ratio", options.ratio)
      .read("value", options.value)
      .read("inplace", options.inplace);
  return RandomErasing(options);
}

Transform auto_augment(const Call& call) {
  auto policy = AutoAugmentPolicy::imagenet;
  AutoAugmentOptions options;
  Arguments(call, {"policy", "interpolation", "fill"})
      .read("policy", policy)
      .read("interpolation", options.interpolation)
      .read("fill", options.fill);
  return AutoAugment(policy, options);
}

Transform rand_augment(const Call& call) {
  RandAugmentOptions options;
  Arguments(call, {"num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill"})
      .read("num_ops", options.num_ops)
      .read("magnitude", options.magnitude)
      .read("num_magnitude_bins", options.num_magnitude_bins)
      .read("interpolation", options.interpolation)
      .read("fill", options.fill);
  return RandAugment(options);
}

Transform trivial_augment_wide(const Call& call) {
  TrivialAugmentWideOptions options;
  Arguments(call, {"num_magnitude_bins", "interpolation", "fill"})
      .read("num_magnitude_bins", options.num_magnitude_bins)
      .read("interpolation", options.interpolation)
      .read("fill", options.fill);
  return TrivialAugmentWide(options);
}

Transform to_tensor(const Call& call) {
  const Arguments no_arguments(call, {});
  return ToTensor();
}

// Conversions from PIL and between Python's classes of tensors.
Transform unchanged(const Call& call) {
  const Arguments no_arguments(call, {});
  return Transform([](const at::Tensor& image) { return image; });
}

Transform to_dtype(const Call& call) {
  const Arguments arguments(call, {"dtype", "scale"});
  ToDtypeOptions options;
  arguments.read("scale", options.scale);
  return ToDtype(arguments.required<at::ScalarType>("dtype"), options);
}

Transform normalize(const Call& call) {
  const Arguments arguments(call, {"mean", "std", "inplace"});
  NormalizeOptions options;
  arguments.read("inplace", options.inplace);
  return Normalize(arguments.required<std::vector<double>>("mean"),
                   arguments.required<std::vector<double>>("std"), options);
}

std::vector<Transform> steps_of_compose(const Call& call) {
  return Arguments(call, {"transforms"}).required<std::vector<Transform>>("transforms");
}

Transform compose(const Call& call) { return Compose(steps_of_compose(call)); }

Transform random_apply(const Call& call) {
  const Arguments arguments(call, {"transforms", "p"});
  double p = 0.5;
  arguments.read("p", p);
  return RandomApply(arguments.required<std::vector<Transform>>("transforms"), p);
}

Transform random_choice(const Call& call) {
  const Arguments arguments(call, {"transforms", "p"});
  Numbers p;
  arguments.read("p", p);
  return RandomChoice(arguments.required<std::vector<Transform>>("transforms"), p);
}

const std::map<std::string_view, Transform (*)(const Call&)> kTransforms{
    {"AutoAugment", auto_augment},
    {"CenterCrop", center_crop},
    {"ColorJitter", color_jitter},
    {"Compose", compose},
    {"GaussianBlur", gaussian_blur},
    {"Grayscale", grayscale},
    {"Normalize", normalize},
    {"PILToTensor", unchanged},
    {"Pad", pad},
    {"RandAugment", rand_augment},
    {"RandomAffine", random_affine},
    {"RandomApply", random_apply},
    {"RandomChoice", random_choice},
    {"RandomCrop", random_crop},
    {"RandomErasing", random_erasing},
    {"RandomGrayscale", with_p<RandomGrayscale>},
    {"RandomHorizontalFlip", with_p<RandomHorizontalFlip>},
    {"RandomResizedCrop", random_resized_crop},
    {"RandomRotation", random_rotation},
    {"RandomVerticalFlip", with_p<RandomVerticalFlip>},
    {"Resize", resize},
    {"ToDtype", to_dtype},
    {"ToImage", unchanged},
    {"ToPureTensor", unchanged},
    {"ToTensor", to_tensor},
    {"TrivialAugmentWide", trivial_augment_wide},
};

Transform transform_of(const Value& value) {
  const auto* const call = std::get_if<Call>(&value.held);
  if (call == nullptr) throw ArgumentError("a transform is a call, such as RandomHorizontalFlip()");
  const auto found = kTransforms.find(call->name);
  if (found != kTransforms.end()) return found->second(*call);
  std::vector<std::string_view> names;
  for (const auto& [name, make] : kTransforms) names.push_back(name);
  throw ArgumentError(
      fmt::format("there is no transform {}; the transforms are {}", call->name, fmt::join(names, ", ")));
}

}  // namespace

std::vector<Transform> transforms_of(std::string_view text) {
  std::vector<Transform> transforms;
  for (const auto& each : parse_python(text)) {
    const auto* const call = std::get_if<Call>(&each.held);
    if (call != nullptr && call->name == "Compose") {
      std::ranges::move(steps_of_compose(*call), std::back_inserter(transforms));
    } else {
      transforms.push_back(transform_of(each));
    }
  }
  return transforms;
}

}  // namespace lockstep::data_tool
