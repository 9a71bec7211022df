// SPDX-License-Identifier: BSD-3-Clause
#include <string>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <lockstep/ddp/comm_hooks.h>
#include <lockstep/ddp/local_sgd.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "runtime/run.h"

namespace lockstep {

struct PostLocalSGD::State {
  PostLocalSGDOptions options;
  std::int64_t iteration = 0;
};

PostLocalSGD::PostLocalSGD(const PostLocalSGDOptions& options)
    : state_(std::make_shared<State>(State{.options = options})) {
  if (options.start_localSGD_iter < 0) {
    throw_error<ArgumentError>("PostLocalSGD: start_localSGD_iter is {}; it must not be negative",
                               options.start_localSGD_iter);
  }
}

std::int64_t PostLocalSGD::iteration() const { return state_->iteration; }

BucketWork PostLocalSGD::operator()(GradBucket& bucket) const {
  const auto& options = state_->options;
  if (state_->iteration < options.start_localSGD_iter) {
    if (bucket.is_last()) ++state_->iteration;
    return allreduce_hook(bucket);
  }
  if (!options.post_local_gradient_allreduce || !options.subgroup) return BucketWork(bucket.buffer());
  return allreduce_average(bucket.buffer(), *options.subgroup);
}

PeriodicModelAverager::PeriodicModelAverager(const PeriodicModelAveragerOptions& options)
    : options_(options), group_(runtime::required_group(options.process_group, "PeriodicModelAverager")) {
  if (options.period < 1) {
    throw_error<ArgumentError>("PeriodicModelAverager: period is {}; it must be positive", options.period);
  }
  if (options.warmup_steps < 0) {
    throw_error<ArgumentError>("PeriodicModelAverager: warmup_steps is {}; it must not be negative",
                               options.warmup_steps);
  }
}

bool PeriodicModelAverager::is_due() {
  const auto step = step_++;
  return step >= options_.warmup_steps && (step - options_.warmup_steps) % options_.period == 0;
}

void PeriodicModelAverager::average(const std::vector<at::Tensor>& parameters,
                                    std::source_location where) const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> averaged;
  std::vector<modules::NamedTensor> sent;
  std::string lines;
  for (const auto& parameter : parameters) {
    const bool has_gradient = parameter.grad().defined();
    lines += fmt::format(
        "{}, {} gradient\n",
        modules::describe("parameter", {std::to_string(&parameter - parameters.data()), parameter}),
        has_gradient ? "with a" : "without a");
    if (!has_gradient) continue;
    averaged.push_back(parameter);
    sent.push_back(
        {.name = fmt::format("parameter {}", &parameter - parameters.data()), .tensor = parameter});
  }
  // Python ranks make one call only.
  if (!comm::state_of(group_).info().with_python) {
    modules::check_same_on_all_ranks(
        group_,
        {.user = "PeriodicModelAverager",
         .lines = lines,
         .advice = "The parameters with gradients are averaged: use the same ones on every rank"},
        where);
  }
  if (averaged.empty()) return;
  modules::check_can_be_sent(group_, "PeriodicModelAverager", sent);
  const auto flat = modules::flattened(averaged);
  flat.div_(group_.size());
  group_.all_reduce(flat, ReduceOp::SUM, where);
  modules::unflatten_into(averaged, flat);
}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters,
                                               std::source_location where) {
  if (is_due()) average(parameters, where);
}

void PeriodicModelAverager::average_parameters(const torch::optim::Optimizer& optimizer,
                                               std::source_location where) {
  if (!is_due()) return;
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  average(parameters, where);
}

}  // namespace lockstep
