// SPDX-License-Identifier: BSD-3-Clause
#include "modules/gradient_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"

namespace lockstep::modules {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void check_clipping(double max_norm, const ClipGradNormOptions& options) {
  if (std::isnan(options.norm_type))
    throw_error<ArgumentError>(
        "clip_grad_norm_: norm_type is NaN; it must be a number, infinity or -infinity");
  if (!(max_norm >= 0))
    throw_error<ArgumentError>("clip_grad_norm_: max_norm is {}; it must be 0 or more", max_norm);
}

std::optional<c10::ScalarType> float32_for_half(c10::ScalarType dtype) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) return at::kFloat;
  if (dtype == at::kComplexHalf) return at::kComplexFloat;
  return std::nullopt;
}

c10::ScalarType float64_for(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? at::kComplexDouble : at::kDouble;
}

// The gradient has elements. No dtype: the norm is computed in that of the gradient.
at::Tensor norm_of(const at::Tensor& gradient, double norm_type, std::optional<c10::ScalarType> dtype) {
  if (!gradient.is_sparse()) return at::linalg_vector_norm(gradient, norm_type, std::nullopt, false, dtype);
  const auto values = gradient.coalesce().values();
  const bool has_zeros = values.numel() < gradient.numel();
  if (values.numel() > 0 && !(has_zeros && norm_type < 0)) return norm_of(values, norm_type, dtype);
  return at::zeros({}, values.options().dtype(c10::toRealValueType(dtype.value_or(values.scalar_type()))));
}

bool has_elements(const CountedGradient& gradient) {
  return gradient.counts && gradient.part.defined() && gradient.part.numel() > 0;
}

// As PyTorch computes it in one process.
at::Tensor norm_of_rank(const std::vector<CountedGradient>& gradients, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const auto& gradient : gradients) {
    if (!has_elements(gradient)) continue;
    const auto norm = norm_of(gradient.part, norm_type, float32_for_half(gradient.part.scalar_type()));
    norms.push_back(norms.empty() ? norm : norm.to(norms.front().device()));
  }
  if (norms.empty()) return at::zeros({}, at::kDouble);
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

// What all ranks must pass alike, and a number of 16 bits by which they see whether they do.
struct Clipping {
  Clipping(double max_norm, const ClipGradNormOptions& options)
      : norm_type(options.norm_type), mark(mark_of(max_norm, options)) {}

  double norm_type;
  double mark;

 private:
  static double mark_of(double max_norm, const ClipGradNormOptions& options) {
    std::uint64_t bits = options.error_if_nonfinite ? 1 : 0;
    for (const double number : {options.norm_type + 0.0, max_norm + 0.0})  // -0 is 0
      bits = (bits ^ std::bit_cast<std::uint64_t>(number)) * 0x9E37'79B9'7F4A'7C15U;
    return static_cast<double>(bits >> 48U);
  }
};

// What is reduced over ranks instead of norms: numbers that are added or, for the infinite types, of which
// the largest counts.
class Terms {
 public:
  explicit Terms(const Clipping& clipping) : norm_type_(clipping.norm_type), mark_(clipping.mark) {}

  // Also for a gradient that has no elements here, because its terms lie at one place on all ranks.
  void add(const CountedGradient& gradient) {
    terms_.push_back(none());
    if (!has_elements(gradient)) return;
    const auto dtype = float64_for(gradient.part.scalar_type());
    terms_.back() = term_of(norm_of(gradient.part, norm_type_, dtype).item<double>());
    has_elements_ = true;
  }
  void add(const Terms& other) {
    terms_.push_back(other.sum());
    has_elements_ = has_elements_ || other.has_elements_;
  }

  // `parts`: a gradient of which another rank has another part counts once for norm_type 0.
  void reduce(const ProcessGroup& ranks, bool parts, std::source_location where) {
    // Backends may drop NaN from a maximum.
    const bool has_nan = std::ranges::any_of(terms_, [](double term) { return std::isnan(term); });
    auto row = terms_;
    if (is_max() && has_nan) std::ranges::fill(row, none());
    row.push_back(has_nan ? 1 : 0);
    row.push_back(has_elements_ ? 1 : 0);
    row.insert(row.end(), {mark_, is_max() ? -mark_ : mark_ * mark_});
    const auto all = at::tensor(row, at::kDouble);
    const comm::CallSite site(where, "norm of the gradients");
    ranks.all_reduce(all, is_max() ? ReduceOp::MAX : ReduceOp::SUM, where);
    const auto* const reduced = all.const_data_ptr<double>();
    check_marks(reduced + terms_.size() + 2, ranks);
    std::copy_n(reduced, terms_.size(), terms_.begin());
    if (reduced[terms_.size()] > 0) std::ranges::fill(terms_, kNaN);
    has_elements_ = reduced[terms_.size() + 1] > 0;
    if (parts && norm_type_ == 0)
      for (auto& term : terms_) term = std::min(term, 1.0);
  }

  double norm() const {
    if (!has_elements_) return 0;
    const auto all = sum();
    if (is_max()) return std::abs(all);
    return norm_type_ == 0 ? all : std::pow(all, 1 / norm_type_);
  }

 private:
  // Equal sums of the marks and of their squares, or an equal maximum and minimum, need equal marks.
  void check_marks(const double* reduced, const ProcessGroup& ranks) const {
    const double count = is_max() ? 1 : ranks.size();
    if (reduced[0] == count * mark_ && reduced[1] == (is_max() ? -mark_ : count * mark_ * mark_)) return;
    throw_error<DesyncError>(comm::reporter_of(ranks), comm::about(ranks),
                             "clip_grad_norm_: another rank passes another norm_type, max_norm or "
                             "error_if_nonfinite than this rank's norm_type {}; pass the same on all ranks",
                             norm_type_);
  }
  bool is_max() const { return std::isinf(norm_type_); }
  double none() const { return is_max() ? -kInfinity : 0; }
  double term_of(double norm) const {
    if (is_max()) return std::copysign(norm, norm_type_);
    if (norm_type_ == 0) return norm > 0 ? 1 : 0;
    return std::pow(norm, norm_type_);
  }
  double sum() const {
    double total = none();
    for (const auto term : terms_) {
      if (!is_max()) {
        total += term;
      } else if (!(term <= total)) {  // or NaN
        total = term;
        if (std::isnan(term)) break;
      }
    }
    return total;
  }

  double norm_type_;
  double mark_;
  std::vector<double> terms_;
  bool has_elements_ = false;
};

bool have_same_ranks(const CountedGradient& one, const CountedGradient& other) {
  const auto is_same = [](const ProcessGroup& a, const ProcessGroup& b) {
    return a.backend() == b.backend();
  };
  if (one.other_ranks.has_value() != other.other_ranks.has_value()) return false;
  if (one.other_ranks && !is_same(*one.other_ranks, *other.other_ranks)) return false;
  return std::ranges::equal(one.cuts, other.cuts, is_same);
}

double norm_over_ranks(const std::vector<CountedGradient>& gradients, const Clipping& clipping,
                       const ProcessGroup* others, std::source_location where) {
  std::vector<std::pair<const CountedGradient*, Terms>> parts;  // for each list of groups
  for (const auto& gradient : gradients) {
    if (!gradient.counts) continue;
    auto part =
        std::ranges::find_if(parts, [&](const auto& each) { return have_same_ranks(*each.first, gradient); });
    if (part == parts.end()) part = parts.insert(parts.end(), {&gradient, Terms(clipping)});
    part->second.add(gradient);
  }
  Terms total(clipping);
  for (auto& [first, terms] : parts) {
    for (auto cut = first->cuts.rbegin(); cut != first->cuts.rend(); ++cut) terms.reduce(*cut, true, where);
    Terms sum(clipping);
    sum.add(terms);
    if (first->other_ranks) sum.reduce(*first->other_ranks, false, where);
    total.add(sum);
  }
  Terms all(clipping);
  all.add(total);
  if (others != nullptr) all.reduce(*others, false, where);
  return all.norm();
}

bool is_of_one_rank(const CountedGradient& gradient) {
  return gradient.cuts.empty() && !gradient.other_ranks.has_value();
}

void scale(const at::Tensor& gradient, const at::Tensor& factor) {
  const auto values = gradient.is_sparse() ? gradient._values() : gradient;
  values.mul_(factor.to(values.device()));
}

}  // namespace

double clip_gradients(const std::vector<CountedGradient>& gradients, double max_norm,
                      const ClipGradNormOptions& options, const ProcessGroup* others,
                      std::source_location where) {
  check_clipping(max_norm, options);
  const c10::NoGradGuard no_grad;
  const bool is_local = others == nullptr && std::ranges::all_of(gradients, is_of_one_rank);
  const auto total =
      is_local ? norm_of_rank(gradients, options.norm_type)
               : at::tensor(norm_over_ranks(gradients, {max_norm, options}, others, where), at::kDouble);
  const auto norm = total.item().toDouble();
  if (options.error_if_nonfinite && !std::isfinite(norm))
    throw_error<NonFiniteError>("clip_grad_norm_: the norm of the gradients is {}, so they cannot be clipped",
                                norm);
  // PyTorch's order of operations, so its bits.
  const auto factor = at::clamp((total + 1e-6).reciprocal() * max_norm, std::nullopt, 1.0);
  if (factor.is_cpu() && factor.item().toDouble() == 1) return norm;
  for (const auto& gradient : gradients)
    if (gradient.part.defined()) scale(gradient.part, factor);
  return norm;
}

}  // namespace lockstep::modules
