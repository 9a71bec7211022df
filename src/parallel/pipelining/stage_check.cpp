// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/stage_check.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "modules/agreement.h"
#include "pipelining/check_plan.h"
#include "pipelining/plan_walk.h"
#include "runtime/run.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

at::Device device_of(const PipelineStage& stage) {
  if (stage.options().device) return *stage.options().device;
  for (const auto& tensors : {stage.submodule()->parameters(), stage.submodule()->buffers()})
    if (!tensors.empty()) return tensors.front().device();
  return at::kCPU;
}

at::Device common_device(const std::vector<PipelineStage>& stages) {
  const auto device = device_of(stages.front());
  for (const auto& stage : stages) {
    if (device_of(stage) != device)
      throw_error<ArgumentError>("stages {} and {} of this rank are on {} and {}; they must be on one device",
                                 stages.front().stage_index(), stage.stage_index(), device.str(),
                                 device_of(stage).str());
  }
  return device;
}

bool has_messages(const Plan& plan) {
  for (const auto& actions : plan.pipeline_order)
    for (const auto& action : actions)
      if (action && (is_send(action->computation_type) || is_recv(action->computation_type))) return true;
  return false;
}

Plan with_messages(const Plan& plan) {
  check_plan(plan);
  return has_messages(plan) ? plan : add_comms(plan);
}

void require_reductions(const Plan& plan) {
  for (const auto& actions : plan.pipeline_order)
    for (const auto& action : actions)
      if (action && action->computation_type == REDUCE_GRAD) return;
  throw_error<ArgumentError>(
      "the plan has messages, but no REDUCE_GRAD; add_reduce_grad() adds them, and add_comms() everything");
}

void check_stages(const std::vector<PipelineStage>& stages, const Plan& plan, const ProcessGroup& group) {
  const int rank = group.rank();
  if (static_cast<int>(plan.pipeline_order.size()) != group.size())
    throw_error<ArgumentError>("the plan is for {} ranks, group {} has {}", plan.pipeline_order.size(),
                               group.name(), group.size());
  const auto rank_of = stage_to_rank(plan);
  std::vector<int> given;
  for (const auto& stage : stages) {
    if (stage.num_stages() != plan.num_stages)
      throw_error<ArgumentError>("rank {}, stage {}: it is one of {} stages, the plan has {}", rank,
                                 stage.stage_index(), stage.num_stages(), plan.num_stages);
    given.push_back(stage.stage_index());
  }
  std::vector<int> planned;
  for (int stage = 0; stage < plan.num_stages; ++stage)
    if (rank_of[static_cast<std::size_t>(stage)] == rank) planned.push_back(stage);
  std::sort(given.begin(), given.end());
  if (given != planned)
    throw_error<ArgumentError>("rank {} has the stages {}; the plan puts {} there", rank,
                               fmt::join(given, ", "), fmt::join(planned, ", "));
}

ScheduleParts parts_of(const std::vector<PipelineStage>& stages, const Plan& plan,
                       const ProcessGroup& group) {
  ScheduleParts parts{.plan = with_messages(plan), .device = common_device(stages), .stages = {}};
  simulate(parts.plan);
  if (device_of(stages.front()).is_cuda()) check_order_of_pairs(parts.plan);
  require_reductions(parts.plan);
  check_stages(stages, parts.plan, group);
  for (const auto& stage : stages)
    parts.stages.emplace(stage.stage_index(), LocalStage(stage, parts.plan.n_microbatches));
  return parts;
}

// What all ranks must have alike.
std::string text_of(const Plan& plan, const PipelineScheduleOptions& options, bool has_loss) {
  auto lines = fmt::format("a plan of {} stages and {} micro-batches, scale_grads={}, loss_fn={}\n",
                           plan.num_stages, plan.n_microbatches, options.scale_grads, has_loss);
  for (std::size_t rank = 0; rank < plan.pipeline_order.size(); ++rank) {
    const auto& actions = plan.pipeline_order[rank];
    for (std::size_t i = 0; i < actions.size(); ++i)
      lines += fmt::format("action {} of rank {}\t{}\n", i, rank, actions[i] ? actions[i]->str() : "none");
  }
  return lines;
}

}  // namespace

ScheduleParts parts_on_all_ranks(const std::vector<PipelineStage>& stages, const Plan& plan,
                                 const PipelineScheduleOptions& options, bool has_loss,
                                 const std::vector<ProcessGroup>& groups, std::source_location where) {
  auto parts = modules::tell_on_failure(groups, kScheduleUser, where,
                                        [&] { return parts_of(stages, plan, groups.front()); });
  const modules::ModuleText own{.user = kScheduleUser,
                                .lines = text_of(parts.plan, options, has_loss),
                                .advice = "Make the same schedule with the same options on every rank"};
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    const std::vector rest(group + 1, groups.end());
    modules::tell_on_failure(rest, kScheduleUser, where,
                             [&] { modules::check_same_on_all_ranks(*group, own, where); });
  }
  return parts;
}

std::vector<ProcessGroup> groups_of(const std::vector<PipelineStage>& stages, const char* user) {
  if (stages.empty()) throw_error<ArgumentError>("{} needs a stage on each rank; pass at least one", user);
  std::vector<ProcessGroup> groups{runtime::required_group(stages.front().options().group, user)};
  auto in_order = stages;
  std::ranges::sort(in_order, {}, &PipelineStage::stage_index);
  for (const auto& stage : in_order) {
    const auto& replicas = stage.options().data_parallel_group;
    const auto is_same = [&](const auto& known) { return known.backend() == replicas->backend(); };
    if (replicas && std::ranges::none_of(groups, is_same)) groups.push_back(*replicas);
  }
  return groups;
}

StageCheck::StageCheck(const PipelineStage& stage) : stage_(stage), module_(*stage.submodule()) {
  for (const auto& [name, tensor] : stage.submodule()->named_parameters().pairs())
    parameters_.push_back(
        {name, tensor, tensor.requires_grad(), tensor.scalar_type(), tensor.device(), tensor.sizes().vec()});
}

std::string StageCheck::change_of_trained() const {
  std::vector<std::string> changes;
  for (const auto& each : parameters_) {
    if (each.parameter.requires_grad() == each.trained) continue;
    changes.push_back(
        fmt::format("parameter {} has been {}", each.name, each.trained ? "frozen" : "unfrozen"));
  }
  return changes.empty() ? "" : fmt::format("stage {}: {}", stage_.stage_index(), fmt::join(changes, "; "));
}

void StageCheck::note_trained() {
  for (auto& each : parameters_) each.trained = each.parameter.requires_grad();
}

std::string StageCheck::lines() const {
  std::string lines;
  for (const auto& each : parameters_)
    lines += modules::describe("parameter", {each.name, each.parameter}) +
             (each.parameter.requires_grad() ? "\n" : ", no gradient\n");
  return lines;
}

std::string StageCheck::change() const {
  const auto what = changed_parameter();
  if (what.empty()) return "";
  return fmt::format(
      "stage {}: {} since the first run; construct a new schedule of the changed stages on all ranks",
      stage_.stage_index(), what);
}

std::string StageCheck::changed_parameter() const {
  const auto& module = *stage_.submodule();
  if (!module_.matches(module)) {
    if (auto difference = module_.difference(module); !difference.empty()) return difference;
  }
  for (const auto& [name, now, trained, dtype, device, sizes] : parameters_) {
    if (now.device() != device) {
      return fmt::format("parameter {} was on {} and is on {}", name, device.str(), now.device().str());
    }
    if (now.scalar_type() == dtype && now.sizes() == at::IntArrayRef(sizes)) continue;
    return fmt::format("parameter {} was {}[{}] and is {}[{}]", name, c10::toString(dtype),
                       fmt::join(sizes, ", "), c10::toString(now.scalar_type()),
                       fmt::join(now.sizes(), ", "));
  }
  return "";
}

}  // namespace lockstep::pipelining
