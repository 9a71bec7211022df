// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <lockstep/nn/functional.h>
#include <lockstep/nn/mixture_of_experts.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "intercept/record.h"
#include "modules/experts.h"

namespace lockstep {
namespace {

using at::Tensor;
using Counts = std::vector<std::int64_t>;

// The tensor itself, whose gradient is multiplied by `factor`.
Tensor with_scaled_gradient(const Tensor& tensor, double factor) {
  return intercept::record(
      "ScaledGradientBackward", {tensor}, {tensor.detach()},
      [=](std::vector<Tensor> gradients) -> std::vector<Tensor> { return {gradients[0] * factor}; })[0];
}

Counts on_host(const Tensor& counts) {
  const auto host = counts.cpu().contiguous();
  return {host.const_data_ptr<std::int64_t>(), host.const_data_ptr<std::int64_t>() + host.numel()};
}

// The sums of groups of `size` counts.
Counts sums_of(const Counts& counts, std::int64_t size) {
  Counts sums;
  for (auto first = counts.begin(); first != counts.end(); first += size)
    sums.push_back(std::accumulate(first, first + size, std::int64_t{0}));
  return sums;
}

void check_options(const MixtureOfExpertsOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw_error<ArgumentError>("MixtureOfExperts: {}", what);
  };
  if (options.dim < 1 || options.num_experts < 1)
    refuse(fmt::format("dim = {} and num_experts = {}; give at least 1", options.dim, options.num_experts));
  if (options.top_k < 1 || options.top_k > options.num_experts)
    refuse(fmt::format("top_k = {} of {} experts", options.top_k, options.num_experts));
  if (options.capacity_factor && !(*options.capacity_factor > 0 && std::isfinite(*options.capacity_factor)))
    refuse(fmt::format("capacity_factor = {}; give more than 0", *options.capacity_factor));
  if (options.top_k == 1 && options.norm_topk_prob.value_or(false))
    refuse("norm_topk_prob with top_k = 1 makes every weight 1, and the gate has no gradient");
  if (options.mesh && options.num_experts % options.mesh->get_group().size() != 0)
    refuse(fmt::format("num_experts = {} is not a multiple of the mesh's {} ranks", options.num_experts,
                       options.mesh->get_group().size()));
}

}  // namespace

// A choice is a token and one of its experts. Choice c of token t has the number c * tokens + t.
struct MixtureOfExpertsImpl::Routes {
  Tensor choices;   // the numbers of those that are kept, in the order of the experts
  Tensor weights;   // of these
  Tensor counts;    // of these, for each expert
  Tensor aux_loss;  // of all choices
};

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options,
                                           const std::function<Expert()>& make_expert,
                                           std::source_location where)
    : Module("MixtureOfExperts"), options_(options), where_(where) {
  const CallerPlace place(where);
  check_options(options);
  if (options.mesh && options.mesh->size() > 1) group_ = options.mesh->get_group();
  gate = register_module(
      "gate", torch::nn::Linear(torch::nn::LinearOptions(options.dim, options.num_experts).bias(false)));
  experts = register_module("experts", std::make_shared<modules::Experts>(group_));
  const auto count = options.num_experts / (group_ ? group_->size() : 1);
  const auto first = group_ ? group_->rank() * count : 0;
  for (std::int64_t i = 0; i < options.num_experts; ++i) {
    const auto expert = make_expert();
    if (!expert.module())
      throw_error<ArgumentError>("MixtureOfExperts: make_expert() returned an empty module");
    if (i < first || i >= first + count) continue;
    experts->register_module(std::to_string(i), expert.module());
    experts_.push_back(expert);
  }
}

MixtureOfExpertsImpl::Routes MixtureOfExpertsImpl::route(const Tensor& tokens) {
  const auto& [dim, num_experts, top_k, capacity_factor, norm_topk_prob, mesh] = options_;
  const auto logits = at::linear(tokens, gate->weight);
  const auto probabilities = logits.softmax(-1, at::toOpMathType(logits.scalar_type()));
  auto [weights, chosen] = probabilities.topk(top_k, -1);
  if (norm_topk_prob.value_or(top_k > 1)) weights = weights / weights.sum(-1, true);

  const auto expert_of = chosen.t().reshape(-1);
  const auto all = expert_of.numel();
  auto counts = at::bincount(expert_of, {}, num_experts);
  const auto share =
      counts.to(probabilities.scalar_type()) / static_cast<double>(std::max<std::int64_t>(all, 1));
  const auto mean = probabilities.sum(0) / static_cast<double>(std::max<std::int64_t>(tokens.size(0), 1));
  const auto aux_loss = (share * mean).sum() * static_cast<double>(num_experts);

  auto choices = expert_of.argsort(/*stable=*/true, 0, false);
  if (capacity_factor) {
    const auto capacity = static_cast<std::int64_t>(
        std::ceil(*capacity_factor * static_cast<double>(all) / static_cast<double>(num_experts)));
    const auto first = counts.cumsum(0) - counts;
    const auto place =
        at::arange(all, choices.options()) - first.index_select(0, expert_of.index_select(0, choices));
    choices = choices.masked_select(place < capacity);
    counts = counts.clamp_max(capacity);
  }
  return {choices, weights.t().reshape(-1).index_select(0, choices), counts, aux_loss};
}

// `rows`: for each rank that sent some, for each expert, as many as `counts` says; the result has that order too.
Tensor MixtureOfExpertsImpl::run_experts(const Tensor& rows, const Counts& counts) const {
  const auto pieces = rows.split_with_sizes(counts);
  std::vector<Tensor> results(pieces.size());
  const auto count = static_cast<std::size_t>(local_experts());
  for (std::size_t expert = 0; expert < count; ++expert) {
    std::vector<Tensor> inputs;
    Counts sizes;
    for (auto i = expert; i < pieces.size(); i += count) {
      inputs.push_back(pieces[i]);
      sizes.push_back(counts[i]);
    }
    // Also without tokens, so that backward reaches the same parameters and calls on all ranks.
    const auto output = experts_[expert].forward(at::cat(inputs));
    if (output.sizes() != at::IntArrayRef({output.size(0), options_.dim})) {
      throw_error<ArgumentError>("MixtureOfExperts: an expert returned [{}] for tokens [{}, {}]",
                                 fmt::join(output.sizes(), ", "), rows.size(0), options_.dim);
    }
    const auto parts = output.split_with_sizes(sizes);
    for (std::size_t i = 0; i < parts.size(); ++i) results[expert + i * count] = parts[i];
  }
  return at::cat(results);
}

MixtureOfExpertsOutput MixtureOfExpertsImpl::forward(const Tensor& input) {
  const CallerPlace place(where_);
  if (input.dim() < 1 || input.size(-1) != options_.dim) {
    throw_error<ArgumentError>("MixtureOfExperts: input [{}]; it is [..., {}]",
                               fmt::join(input.sizes(), ", "), options_.dim);
  }
  const auto tokens = input.reshape({-1, options_.dim});
  const auto routes = route(tokens);
  const auto rows =
      tokens.index_select(0, routes.choices.remainder(std::max<std::int64_t>(tokens.size(0), 1)));

  Tensor results;
  if (group_) {
    const auto received_counts = at::empty_like(routes.counts);
    const comm::CallSite site("tokens of experts");
    group_->all_to_all_single(received_counts, routes.counts);
    const auto counts = on_host(received_counts);
    const auto received = sums_of(counts, local_experts());
    const auto sent = sums_of(on_host(routes.counts), local_experts());
    const auto total = std::accumulate(received.begin(), received.end(), std::int64_t{0});
    // Backward adds the losses of all ranks; the experts' gradients are of their mean.
    const auto ranks = static_cast<double>(group_->size());
    const auto arrived = nn::functional::all_to_all_single(at::empty({total, options_.dim}, rows.options()),
                                                           rows, received, sent, group_, where_);
    const auto done =
        with_scaled_gradient(run_experts(with_scaled_gradient(arrived, ranks), counts), 1 / ranks);
    results = nn::functional::all_to_all_single(at::empty(rows.sizes(), done.options()), done, sent, received,
                                                group_, where_);
  } else {
    results = run_experts(rows, on_host(routes.counts));
  }

  const auto all = tokens.size(0) * options_.top_k;
  const auto weighted = results * routes.weights.unsqueeze(-1).to(results.scalar_type());
  const auto output = at::zeros({all, options_.dim}, weighted.options())
                          .index_copy(0, routes.choices, weighted)
                          .view({options_.top_k, -1, options_.dim})
                          .sum(0);
  return {.output = output.view(input.sizes()),
          .aux_loss = routes.aux_loss,
          .dropped = all - routes.choices.numel()};
}

std::vector<std::string> expert_names(ConstModuleRef module) {
  std::vector<std::string> names;
  for (const auto& expert : modules::expert_tensors(module)) names.push_back(expert.name);
  return names;
}

}  // namespace lockstep
