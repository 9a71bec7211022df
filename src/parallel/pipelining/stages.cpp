// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>

#include <lockstep/pipelining/pipeline.h>

#include "base/throw_error.h"
#include "modules/agreement.h"
#include "pipelining/stage_check.h"
#include "pipelining/stage_cuts.h"

namespace lockstep::pipelining {
namespace {

Plan plan_for(const char* name, const std::vector<PipelineStage>& stages, int n_microbatches) {
  const auto groups = groups_of(stages, name);
  return modules::tell_on_failure(groups, name, std::source_location::current(), [&] {
    return make_plan(name, groups.front().size(), static_cast<int>(stages.size()), n_microbatches);
  });
}

}  // namespace

// By dynamic programming over the number of parts.
std::vector<std::size_t> stage_cuts(const std::vector<double>& costs, std::size_t parts) {
  const auto layers = costs.size();
  std::vector<double> sums(layers + 1);
  for (std::size_t i = 0; i < layers; ++i) sums[i + 1] = sums[i] + costs[i];
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector best(parts + 1, std::vector<double>(layers + 1, kNone));
  std::vector from(parts + 1, std::vector<std::size_t>(layers + 1));
  best[0][0] = 0;
  for (std::size_t part = 1; part <= parts; ++part) {
    for (std::size_t end = part; end <= layers; ++end) {
      for (std::size_t begin = part - 1; begin < end; ++begin) {
        const double cost = std::max(best[part - 1][begin], sums[end] - sums[begin]);
        if (cost >= best[part][end]) continue;
        best[part][end] = cost;
        from[part][end] = begin;
      }
    }
  }
  std::vector<std::size_t> begins(parts + 1, layers);
  for (auto part = parts; part > 0; --part) begins[part - 1] = from[part][begins[part]];
  return begins;
}

PipelineStage::PipelineStage(std::shared_ptr<torch::nn::Module> submodule, Forward forward, int stage_index,
                             int num_stages, PipelineStageOptions options)
    : submodule_(std::move(submodule)),
      forward_(std::move(forward)),
      stage_index_(stage_index),
      num_stages_(num_stages),
      options_(std::move(options)) {
  if (!submodule_ || !forward_)
    throw_error<ArgumentError>("PipelineStage {}: the module is empty", stage_index);
  if (std::dynamic_pointer_cast<nn::WrapperModule>(submodule_))
    throw_error<ArgumentError>(
        "PipelineStage {}: the module is wrapped by DistributedDataParallel or DataParallel, which would "
        "reduce in every micro-batch; pass the module itself and set data_parallel_group",
        stage_index);
  if (stage_index < 0 || stage_index >= num_stages)
    throw_error<ArgumentError>("PipelineStage: stage_index {} of {} stages", stage_index, num_stages);
}

void PipelineStage::refuse_inputs(std::size_t count) {
  throw_error<ArgumentError>("the module's forward() does not take {} tensors; pass a `forward`", count);
}

std::vector<torch::nn::Sequential> split_sequential(const torch::nn::Sequential& net, int num_stages,
                                                    SplitBy by) {
  std::vector<double> costs;
  for (const auto& layer : net->children()) {
    double cost = 1;
    if (by == SplitBy::parameters) {
      cost = 0;
      for (const auto& parameter : layer->parameters()) cost += static_cast<double>(parameter.numel());
    }
    costs.push_back(cost);
  }
  return split_sequential(net, num_stages, costs);
}

std::vector<torch::nn::Sequential> split_sequential(const torch::nn::Sequential& net, int num_stages,
                                                    const std::vector<double>& costs) {
  const auto names = net->named_children().keys();
  if (costs.size() != names.size())
    throw_error<ArgumentError>("split_sequential: {} costs for {} layers", costs.size(), names.size());
  if (num_stages < 1 || names.size() < static_cast<std::size_t>(num_stages))
    throw_error<ArgumentError>("split_sequential: {} layers cannot be {} stages", names.size(), num_stages);
  for (std::size_t i = 0; i < costs.size(); ++i)
    if (!std::isfinite(costs[i]) || costs[i] < 0)
      throw_error<ArgumentError>("split_sequential: layer {} has the cost {}", names[i], costs[i]);
  const auto begins = stage_cuts(costs, static_cast<std::size_t>(num_stages));
  std::vector<torch::nn::Sequential> parts;
  for (std::size_t part = 0; part + 1 < begins.size(); ++part) {
    torch::nn::Sequential sequential;
    for (auto i = begins[part]; i < begins[part + 1]; ++i)
      sequential->push_back(names[i], *(net->begin() + static_cast<std::ptrdiff_t>(i)));
    parts.push_back(sequential);
  }
  return parts;
}

ScheduleGPipe::ScheduleGPipe(const PipelineStage& stage, int n_microbatches, LossFunction loss_fn,
                             const PipelineScheduleOptions& options)
    : PipelineSchedule({stage}, plan_for("GPipe", {stage}, n_microbatches), std::move(loss_fn), options) {}
Schedule1F1B::Schedule1F1B(const PipelineStage& stage, int n_microbatches, LossFunction loss_fn,
                           const PipelineScheduleOptions& options)
    : PipelineSchedule({stage}, plan_for("1F1B", {stage}, n_microbatches), std::move(loss_fn), options) {}
ScheduleInterleaved1F1B::ScheduleInterleaved1F1B(const std::vector<PipelineStage>& stages, int n_microbatches,
                                                 LossFunction loss_fn, const PipelineScheduleOptions& options)
    : PipelineSchedule(stages, plan_for("Interleaved1F1B", stages, n_microbatches), std::move(loss_fn),
                       options) {}
ScheduleLoopedBFS::ScheduleLoopedBFS(const std::vector<PipelineStage>& stages, int n_microbatches,
                                     LossFunction loss_fn, const PipelineScheduleOptions& options)
    : PipelineSchedule(stages, plan_for("LoopedBFS", stages, n_microbatches), std::move(loss_fn), options) {}
ScheduleInterleavedZeroBubble::ScheduleInterleavedZeroBubble(const std::vector<PipelineStage>& stages,
                                                             int n_microbatches, LossFunction loss_fn,
                                                             const PipelineScheduleOptions& options)
    : PipelineSchedule(stages, plan_for("InterleavedZeroBubble", stages, n_microbatches), std::move(loss_fn),
                       options) {}
ScheduleZBVZeroBubble::ScheduleZBVZeroBubble(const std::vector<PipelineStage>& stages, int n_microbatches,
                                             LossFunction loss_fn, const PipelineScheduleOptions& options)
    : PipelineSchedule(stages, plan_for("ZBVZeroBubble", stages, n_microbatches), std::move(loss_fn),
                       options) {}
ScheduleDualPipeV::ScheduleDualPipeV(const std::vector<PipelineStage>& stages, int n_microbatches,
                                     LossFunction loss_fn, const PipelineScheduleOptions& options)
    : PipelineSchedule(stages, plan_for("DualPipeV", stages, n_microbatches), std::move(loss_fn), options) {}

}  // namespace lockstep::pipelining
