// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include <ATen/ops/multinomial.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <lockstep/transforms/compose.h>

#include "base/throw_error.h"
#include "transforms/checks.h"
#include "transforms/draws.h"
#include "transforms/text.h"

namespace lockstep::transforms {
namespace {

std::vector<std::string> texts_of(const std::vector<Transform>& transforms) {
  std::vector<std::string> texts;
  for (const auto& transform : transforms) texts.push_back(transform.to_string());
  return texts;
}

void check_list(std::string_view name, const std::vector<Transform>& transforms) {
  if (transforms.empty()) throw_error<ArgumentError>("{}: pass at least one transform", name);
}

// Python's str.replace().
std::string with_replaced(std::string text, std::string_view old, std::string_view other) {
  for (auto at = text.find(old); at != std::string::npos; at = text.find(old, at + other.size())) {
    text.replace(at, old.size(), other);
  }
  return text;
}

// The representation of a module: what stands in one line stays in it.
std::string framed(std::string_view name, const std::string& extra) {
  if (extra.find('\n') == std::string::npos) return fmt::format("{}({})", name, extra);
  return fmt::format("{}(\n  {}\n)", name, with_replaced(extra, "\n", "\n  "));
}

// The step of the first two, if there is one for both.
std::optional<Transform> common_step(const Transform& first, const Transform& second) {
  const auto* const normalize = second.target<Normalize>();
  if (normalize == nullptr) return std::nullopt;
  if (const auto* const conversion = first.target<ToTensor>()) {
    return NormalizedConversion(*conversion, *normalize);
  }
  if (const auto* const conversion = first.target<ToDtype>()) {
    return NormalizedConversion(*conversion, *normalize);
  }
  return std::nullopt;
}

std::vector<Transform> steps_of(const std::vector<Transform>& transforms) {
  std::vector<Transform> steps;
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    const auto common =
        i + 1 < transforms.size() ? common_step(transforms[i], transforms[i + 1]) : std::nullopt;
    steps.push_back(common.value_or(transforms[i]));
    if (common) ++i;
  }
  return steps;
}

std::vector<double> normalized(const Numbers& p, std::size_t count) {
  if (p.empty()) return std::vector<double>(count, 1.0 / static_cast<double>(count));
  if (p.size() != count) {
    throw_error<ArgumentError>("RandomChoice: p has {} probabilities for {} transforms", p.size(), count);
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  if (sum <= 0 || std::ranges::any_of(p, [](double value) { return value < 0; })) {
    throw_error<ArgumentError>(
        "RandomChoice: p should have no negative number and one above 0, but it is {{{}}}",
        fmt::join(p, ", "));
  }
  std::vector<double> result;
  for (const auto value : p) result.push_back(value / sum);
  return result;
}

}  // namespace

std::string detail::module_text(const std::string& name, const std::vector<std::string>& transforms) {
  return framed(name, "    " + fmt::format("{}", fmt::join(transforms, "\n    ")));
}

Compose<>::Compose(std::vector<Transform> transforms)
    : text_(detail::module_text("Compose", texts_of(transforms))), steps_(steps_of(transforms)) {
  check_list("Compose", transforms);
}

at::Tensor Compose<>::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  auto result = image;
  for (const auto& step : steps_) result = step(result, generator);
  return result;
}

at::Tensor Compose<>::operator()(const EncodedImage& image, const OptionalGenerator& generator) const {
  auto result = steps_.front()(image, generator);
  for (const auto& step : std::span(steps_).subspan(1)) result = step(result, generator);
  return result;
}

RandomApply::RandomApply(std::vector<Transform> transforms, double p)
    : text_(detail::module_text("RandomApply", texts_of(transforms))),
      transforms_((check_list("RandomApply", transforms), std::move(transforms))),
      p_(p) {
  check_probability("RandomApply", p);
}

at::Tensor RandomApply::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  return happens(p_, generator) ? transforms_(image, generator) : image;
}

RandomChoice::RandomChoice(std::vector<Transform> transforms, Numbers p)
    : transforms_((check_list("RandomChoice", transforms), std::move(transforms))),
      p_(normalized(p, transforms_.size())) {}

at::Tensor RandomChoice::operator()(const at::Tensor& image, const OptionalGenerator& generator) const {
  const auto p = at::tensor(at::ArrayRef<double>(p_), at::kFloat);
  const auto index = at::multinomial(p, 1, /*replacement=*/false, generator).item<std::int64_t>();
  return transforms_[static_cast<std::size_t>(index)](image, generator);
}

std::string RandomChoice::to_string() const {
  return framed("RandomChoice", fmt::format("transforms=[{}], p=[{}]", fmt::join(texts_of(transforms_), ", "),
                                            joined(p_, float_text)));
}

}  // namespace lockstep::transforms
