// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <random>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <lockstep/ddp/comm_hooks.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/non_member.h"
#include "ddp/bucket.h"
#include "modules/broadcast.h"

namespace lockstep {
namespace {

// numpy.random.RandomState(seed).randint(10**9), which PyTorch seeds the matrices with.
std::uint64_t next_seed(std::mt19937& engine) {
  constexpr std::uint32_t kMask = (1U << 30U) - 1;
  constexpr std::uint32_t kLast = 999'999'999;
  std::uint32_t drawn = kLast + 1;
  while (drawn > kLast) drawn = static_cast<std::uint32_t>(engine()) & kMask;
  return drawn;
}

// The columns of each matrix [batch, rows, columns] become orthonormal.
void orthogonalize_by_gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const auto columns = matrices.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    const auto column = matrices.narrow(2, i, 1);
    auto norm = at::norm(column, 2, {1}, true);
    if (epsilon != 0) norm = norm + epsilon;
    column.div_(norm);
    if (i + 1 == columns) break;
    const auto rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(at::sum(column * rest, {1}, true) * column);
  }
}

void orthogonalize(at::Tensor matrices, double epsilon) {
  const auto dtype = matrices.scalar_type();
  if (matrices.size(2) <= 2 || dtype == at::kHalf || dtype == at::kBFloat16) {
    orthogonalize_by_gram_schmidt(matrices, epsilon);
    return;
  }
  auto r = at::empty({matrices.size(0), matrices.size(2), matrices.size(2)}, matrices.options());
  at::linalg_qr_out(matrices, r, matrices);
}

// Gradients of one shape, and the thin matrices that stand for them.
struct Factor {
  at::Tensor matrices;                // [batch, n, m]
  std::vector<at::Tensor> originals;  // where the matrices are a copy
  at::Tensor p;                       // [batch, n, rank]
  at::Tensor q;                       // [batch, m, rank]
};

// One bucket on its way.
struct Step {
  at::Tensor input = {};
  at::Tensor before = {};  // with error feedback: the input as it was
  std::vector<Factor> factors = {};
  std::vector<at::Tensor> uncompressed = {};
  at::Tensor uncompressed_row = {};
  at::Tensor p_row = {};
  at::Tensor q_row = {};
  std::size_t bucket = 0;
  bool is_last = false;
};

// By shape, in the order in which shapes come first.
std::vector<std::vector<at::Tensor>> by_shape(const std::vector<at::Tensor>& matrices) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& matrix : matrices) {
    const auto same = std::ranges::find_if(
        groups, [&](const auto& group) { return group.front().sizes() == matrix.sizes(); });
    same == groups.end() ? groups.push_back({matrix}) : same->push_back(matrix);
  }
  return groups;
}

}  // namespace

struct PowerSGD::State {
  explicit State(const PowerSGDOptions& given) : options(given), seeds(given.random_seed) {}

  std::int64_t rank_for(std::int64_t n, std::int64_t m) const {
    return std::min({n, m, options.matrix_approximation_rank});
  }
  bool is_worth_it(std::int64_t n, std::int64_t m);
  Step begin(GradBucket& bucket);
  void make_factors(Step& step, const std::vector<at::Tensor>& matrices);
  void fill_q(Step& step, bool randomly);
  BucketWork send_p(const std::shared_ptr<Step>& step, const ProcessGroup& group);
  BucketWork send_q(const std::shared_ptr<Step>& step, const ProcessGroup& group);
  at::Tensor decompress(Step& step, int ranks);

  PowerSGDOptions options;
  std::mt19937 seeds;
  std::int64_t iteration = 0;
  std::int64_t numel_before = 0;
  std::int64_t numel_after = 0;
  std::map<std::size_t, at::Tensor> errors;
  std::map<std::size_t, at::Tensor> p_rows;
  std::map<std::size_t, at::Tensor> q_rows;
};

bool PowerSGD::State::is_worth_it(std::int64_t n, std::int64_t m) {
  const auto before = n * m;
  const auto after = (n + m) * rank_for(n, m);
  const bool worth = static_cast<double>(after) * options.min_compression_rate < static_cast<double>(before);
  numel_before += before;
  numel_after += worth ? after : before;
  return worth;
}

Step PowerSGD::State::begin(GradBucket& bucket) {
  Step step{.input = bucket.buffer(), .bucket = bucket.index(), .is_last = bucket.is_last()};
  if (options.use_error_feedback) {
    const auto error = errors.find(step.bucket);
    if (error != errors.end()) step.input.add_(error->second);
    step.before = step.input.clone();
  }
  std::vector<at::Tensor> matrices;
  for (const auto& gradient : bucket.gradients()) {
    // PyTorch takes the first dimension; a parameter of none is a row of one.
    const auto matrix = gradient.dim() == 0 ? gradient.view({1, 1}) : gradient.view({gradient.size(0), -1});
    if (is_worth_it(matrix.size(0), matrix.size(1))) {
      matrices.push_back(matrix);
    } else {
      step.uncompressed.push_back(gradient);
    }
  }
  step.uncompressed_row = step.uncompressed.empty() ? at::empty({0}, step.input.options())
                                                    : modules::flattened(step.uncompressed);
  make_factors(step, matrices);
  return step;
}

void PowerSGD::State::make_factors(Step& step, const std::vector<at::Tensor>& matrices) {
  for (const auto& group : by_shape(matrices)) {
    if (options.batch_tensors_with_same_shape && group.size() > 1) {
      step.factors.push_back({.matrices = at::stack(group), .originals = group, .p = {}, .q = {}});
      continue;
    }
    for (const auto& matrix : group) {
      step.factors.push_back({.matrices = matrix.unsqueeze(0), .originals = {}, .p = {}, .q = {}});
    }
  }
  std::int64_t p_numel = 0;
  std::int64_t q_numel = 0;
  for (const auto& factor : step.factors) {
    const auto& sizes = factor.matrices.sizes();
    p_numel += sizes[0] * sizes[1] * rank_for(sizes[1], sizes[2]);
    q_numel += sizes[0] * sizes[2] * rank_for(sizes[1], sizes[2]);
  }
  const bool anew = !options.warm_start || !p_rows.contains(step.bucket);
  if (anew) {
    p_rows[step.bucket] = at::empty({p_numel}, step.input.options());
    q_rows[step.bucket] = at::empty({q_numel}, step.input.options());
  }
  step.p_row = p_rows[step.bucket];
  step.q_row = q_rows[step.bucket];
  std::int64_t p_at = 0;
  std::int64_t q_at = 0;
  for (auto& factor : step.factors) {
    const auto& sizes = factor.matrices.sizes();
    const auto rank = rank_for(sizes[1], sizes[2]);
    factor.p = step.p_row.narrow(0, p_at, sizes[0] * sizes[1] * rank).view({sizes[0], sizes[1], rank});
    factor.q = step.q_row.narrow(0, q_at, sizes[0] * sizes[2] * rank).view({sizes[0], sizes[2], rank});
    p_at += factor.p.numel();
    q_at += factor.q.numel();
  }
  fill_q(step, anew);
}

void PowerSGD::State::fill_q(Step& step, bool randomly) {
  at::Generator generator;
  if (randomly) generator = at::make_generator<at::CPUGeneratorImpl>(next_seed(seeds));
  for (auto& factor : step.factors) {
    if (randomly) {
      const auto on_cpu = at::TensorOptions().dtype(factor.q.scalar_type());
      factor.q.copy_(at::randn(factor.q.sizes(), generator, on_cpu));
    }
    orthogonalize(factor.q, options.orthogonalization_epsilon);
  }
}

BucketWork PowerSGD::State::send_p(const std::shared_ptr<Step>& step, const ProcessGroup& group) {
  step->uncompressed_row.div_(group.size());
  modules::unflatten_into(step->uncompressed, step->uncompressed_row);
  const comm::CallSite site(ddp::kGradients, static_cast<int>(step->bucket));
  return {group.all_reduce_async(step->p_row), [this, step, group] { return send_q(step, group); }};
}

BucketWork PowerSGD::State::send_q(const std::shared_ptr<Step>& step, const ProcessGroup& group) {
  for (auto& factor : step->factors) {
    orthogonalize(factor.p, options.orthogonalization_epsilon);
    at::bmm_out(factor.q, factor.matrices.transpose(1, 2), factor.p);
  }
  const comm::CallSite site(ddp::kGradients, static_cast<int>(step->bucket));
  return {group.all_reduce_async(step->q_row),
          [this, step, ranks = group.size()] { return BucketWork(decompress(*step, ranks)); }};
}

at::Tensor PowerSGD::State::decompress(Step& step, int ranks) {
  step.q_row.div_(ranks);
  for (auto& factor : step.factors) {
    at::bmm_out(factor.matrices, factor.p, factor.q.transpose(1, 2));
    for (std::size_t i = 0; i < factor.originals.size(); ++i) {
      factor.originals[i].copy_(factor.matrices[static_cast<std::int64_t>(i)]);
    }
  }
  if (options.use_error_feedback) errors[step.bucket] = step.before - step.input;
  if (!options.warm_start) {
    p_rows.clear();
    q_rows.clear();
  }
  if (step.is_last) ++iteration;
  return step.input;
}

PowerSGD::PowerSGD(const PowerSGDOptions& options) : state_(std::make_shared<State>(options)) {
  comm::require_member(options.process_group, "PowerSGD");
  if ((options.use_error_feedback || options.warm_start) && options.start_powerSGD_iter <= 1) {
    throw_error<ArgumentError>(
        "PowerSGD: start_powerSGD_iter is {}; with error feedback or warm start it must be above 1, since "
        "buckets are laid out anew after the first iteration",
        options.start_powerSGD_iter);
  }
  if (options.matrix_approximation_rank < 1) {
    throw_error<ArgumentError>("PowerSGD: matrix_approximation_rank is {}; it must be positive",
                               options.matrix_approximation_rank);
  }
}

BucketWork PowerSGD::operator()(GradBucket& bucket) const {
  const auto group = state_->options.process_group.value_or(bucket.process_group());
  if (bucket.buffer().is_sparse()) {
    throw ArgumentError("PowerSGD: sparse gradients are not supported; that of " +
                        bucket.parameters().front().name + " is sparse");
  }
  const comm::CallSite site(ddp::kGradients, static_cast<int>(bucket.index()));
  if (state_->iteration < state_->options.start_powerSGD_iter) {
    if (bucket.is_last()) ++state_->iteration;
    return allreduce_average_async(bucket.buffer(), group);
  }
  const auto step = std::make_shared<Step>(state_->begin(bucket));
  for (auto& factor : step->factors) at::bmm_out(factor.p, factor.matrices, factor.q);
  return {group.all_reduce_async(step->uncompressed_row),
          [state = state_, step, group] { return state->send_p(step, group); }};
}

PowerSGD::CompressionStats PowerSGD::compression_stats() const {
  const auto before = state_->numel_before;
  const auto after = state_->numel_after;
  return {.rate = after > 0 ? static_cast<double>(before) / static_cast<double>(after) : 0,
          .numel_before = before,
          .numel_after = after};
}

}  // namespace lockstep
