// SPDX-License-Identifier: BSD-3-Clause
#include "transforms/auto_augment.h"

#include <string_view>

#include <fmt/format.h>

#include <lockstep/transforms/augment.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/text.h"

namespace lockstep::transforms {
namespace {

constexpr std::int64_t kPolicyBins = 10;

const Policy& policy_of(AutoAugmentPolicy policy) {
  switch (policy) {
    case AutoAugmentPolicy::CIFAR10:
      return policy_steps::kCifar10;
    case AutoAugmentPolicy::SVHN:
      return policy_steps::kSvhn;
    default:
      return policy_steps::kImageNet;
  }
}

std::string_view name_of(AutoAugmentPolicy policy) {
  constexpr std::array<std::string_view, 3> kNames = {"IMAGENET", "CIFAR10", "SVHN"};
  return kNames.at(static_cast<std::size_t>(policy));
}

void check_bins(std::string_view transform, std::int64_t bins) {
  if (bins >= 2) return;
  throw_error<ArgumentError>("{}: num_magnitude_bins should be at least 2, but it is {}", transform, bins);
}

AugmentOp draw_op(const OptionalGenerator& generator) {
  return static_cast<AugmentOp>(below(kDrawnOps, generator));
}

double with_sign(AugmentOp op, double magnitude, const OptionalGenerator& generator) {
  return is_signed(op) && happens_up_to(0.5, generator) ? -magnitude : magnitude;
}

// "interpolation=nearest, fill=3", the fill only where there is one.
template <typename Options>
std::string sampling_text(const Options& options) {
  const auto fill = options.fill.empty() ? "" : ", fill=" + fill_text(options.fill);
  return fmt::format("interpolation={}{}", text_of(options.interpolation), fill);
}

}  // namespace

AutoAugment::AutoAugment(AutoAugmentPolicy policy, const AutoAugmentOptions& options)
    : policy_(policy), options_(options) {
  check_interpolation("AutoAugment", options_.interpolation);
}

at::Tensor AutoAugment::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_color_image("AutoAugment", image);
  const auto& policy = policy_of(policy_);
  const auto index = below(static_cast<std::int64_t>(policy.size()), generator);
  const auto space = narrow_space(image);
  auto result = image;
  for (const auto& step : policy.at(static_cast<std::size_t>(index))) {
    if (!happens_up_to(step.p, generator)) continue;
    double magnitude = 0;
    if (has_magnitude(step.op)) {
      magnitude = with_sign(step.op, magnitude_of(step.op, step.magnitude, kPolicyBins, space), generator);
    }
    result =
        augment(result, step.op, magnitude, {.interpolation = options_.interpolation, .fill = options_.fill});
  }
  return result;
}

std::string AutoAugment::to_string() const {
  return fmt::format("AutoAugment({}, policy=AutoAugmentPolicy.{})", sampling_text(options_),
                     name_of(policy_));
}

RandAugment::RandAugment(const RandAugmentOptions& options) : options_(options) {
  check_interpolation("RandAugment", options_.interpolation);
  check_bins("RandAugment", options_.num_magnitude_bins);
  if (options_.num_ops < 0) {
    throw_error<ArgumentError>("RandAugment: num_ops should not be negative, but it is {}", options_.num_ops);
  }
  if (options_.magnitude < 0 || options_.magnitude >= options_.num_magnitude_bins) {
    throw_error<ArgumentError>("RandAugment: magnitude {} is not in 0 .. {}; num_magnitude_bins is {}",
                               options_.magnitude, options_.num_magnitude_bins - 1,
                               options_.num_magnitude_bins);
  }
}

at::Tensor RandAugment::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_color_image("RandAugment", image);
  const auto space = narrow_space(image);
  auto result = image;
  for (std::int64_t i = 0; i < options_.num_ops; ++i) {
    const auto op = draw_op(generator);
    double magnitude = 0;
    if (has_magnitude(op)) {
      magnitude =
          with_sign(op, magnitude_of(op, options_.magnitude, options_.num_magnitude_bins, space), generator);
    }
    result = augment(result, op, magnitude, {.interpolation = options_.interpolation, .fill = options_.fill});
  }
  return result;
}

std::string RandAugment::to_string() const {
  return fmt::format("RandAugment({}, num_ops={}, magnitude={}, num_magnitude_bins={})",
                     sampling_text(options_), options_.num_ops, options_.magnitude,
                     options_.num_magnitude_bins);
}

TrivialAugmentWide::TrivialAugmentWide(const TrivialAugmentWideOptions& options) : options_(options) {
  check_interpolation("TrivialAugmentWide", options_.interpolation);
  check_bins("TrivialAugmentWide", options_.num_magnitude_bins);
}

at::Tensor TrivialAugmentWide::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  check_color_image("TrivialAugmentWide", image);
  const auto op = draw_op(generator);
  double magnitude = 0;
  if (has_magnitude(op)) {
    const auto bin = below(options_.num_magnitude_bins, generator);
    magnitude = with_sign(op, magnitude_of(op, bin, options_.num_magnitude_bins, wide_space()), generator);
  }
  return augment(image, op, magnitude, {.interpolation = options_.interpolation, .fill = options_.fill});
}

std::string TrivialAugmentWide::to_string() const {
  return fmt::format("TrivialAugmentWide({}, num_magnitude_bins={})", sampling_text(options_),
                     options_.num_magnitude_bins);
}

}  // namespace lockstep::transforms
