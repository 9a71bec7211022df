// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <sstream>

#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/pipelining/pipeline.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "modules/agreement.h"
#include "pipelining/action_errors.h"
#include "pipelining/plan_walk.h"
#include "pipelining/shared_gradients.h"
#include "pipelining/stage_check.h"
#include "pipelining/stage_messages.h"
#include "pipelining/timeline.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

// The same on all ranks of a host, and roughly on all hosts.
double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

// Note [The runtime]
//
// A plan is a list of actions for each rank, which check_plan() and simulate() have accepted. The runtime
// performs the list of its rank in order and decides nothing. In zero-bubble plans backward has two actions:
//
//     stage        x ----> [ op 1 ] ----> [ op 2 ] ----> y
//     I            dx <--- [ op 1 ] <---- [ op 2 ] <---- dy     the rank before waits for dx: SEND_B
//     W                      dw 1           dw 2                nobody waits: fills gaps
//
//     plan, rank 0    F0 F1 .  I0 W0 I1 W1
//           rank 1    .  F0 I0 F1 I1 W0 W1 .
//
// I (SplitBackward::input_part) runs the graph from dy to dx alone. At the forks, nodes that lead to inputs
// and to parameters, it keeps the gradients that pass and cuts the edges to the input side. W
// (SplitBackward::weight_part) runs the graph from the forks with what was kept, adds to the parameters'
// gradients and frees the micro-batch. Each matrix product runs once, so the bits are those of one backward.
// The first stage has no inputs that need gradients: its I keeps dy, and its W does everything.
//
// RECV actions only post a receive; the forward or backward that needs the message waits for it. Sends are
// asynchronous and waited for at the end of the step. Between stages of one rank, outputs and gradients are
// handed over in memory (`arrived_`). REDUCE_GRAD, after a stage's last B or W, divides and averages.
class PipelineSchedule::Runtime {
 public:
  Runtime(const ProcessGroup& group, const std::vector<PipelineStage>& stages, ScheduleParts parts,
          LossFunction loss_fn, const PipelineScheduleOptions& options)
      : group_(group),
        plan_(std::move(parts.plan)),
        loss_fn_(std::move(loss_fn)),
        options_(options),
        messages_(group_, plan_, parts.device),
        shared_(group_, stages, 2 * plan_.num_stages * plan_.n_microbatches * 16),
        stages_(std::move(parts.stages)) {}

  // The outputs, where there are any.
  std::optional<AnyPyTree> run(const AnyPyTree& args, const AnyPyTree& target, Tensors* losses, bool backward,
                               std::source_location where) {
    messages_.set_place(where);
    shared_.set_place(where);
    if (backward_ && *backward_ != backward) messages_.forget_shapes();
    backward_ = backward;
    take_arguments(args, target);  // an error in them is no run
    const auto ends_run = c10::make_scope_exit([this] { shared_.end_run(); });
    shared_.agree_on_changes();
    return shared_.run([&] { return perform_all(losses); });
  }

  void register_function(ComputationType type, std::function<void(const Action&)> function) {
    if (type != UNSHARD && type != RESHARD && type != REDUCE_GRAD)
      throw_error<ArgumentError>(
          "register_custom_function: only for UNSHARD, RESHARD and REDUCE_GRAD, not {}",
          Action{.stage_index = 0, .computation_type = type}.str().substr(1));
    functions_[type] = std::move(function);
  }

  Timeline timeline(std::source_location where) const {
    std::string mine;
    for (const auto& each : timeline_)
      mine += fmt::format("{} {} {}\n", each.action.str(), each.start, each.end);
    std::vector<TimedAction> all;
    const auto texts = group_.all_gather_object(mine, where);
    for (int rank = 0; rank < group_.size(); ++rank) {
      std::istringstream lines(texts[static_cast<std::size_t>(rank)]);
      std::string action;
      for (double start = 0, end = 0; lines >> action >> start >> end;)
        all.push_back({rank, Action::from_str(action), start, end});
    }
    return summarize(std::move(all), group_.size());
  }

  const SharedGradients& gradients() const { return shared_; }
  bool has_loss() const { return loss_fn_ != nullptr; }
  const Plan& plan() const { return plan_; }

 private:
  void timed(const Action& action, const auto& body) {
    const double start = seconds_now();
    body();
    timeline_.push_back({group_.rank(), action, start, seconds_now()});
  }

  double divisor() const { return options_.scale_grads ? plan_.n_microbatches : 1; }

  LocalStage* local(int stage) {
    const auto found = stages_.find(stage);
    return found == stages_.end() ? nullptr : &found->second;
  }

  void take_arguments(const AnyPyTree& args, const AnyPyTree& target) {
    for (auto& [index, stage] : stages_) stage.clear();
    arrived_.clear();
    timeline_.clear();
    args_.clear();
    targets_.clear();
    losses_.assign(static_cast<std::size_t>(plan_.n_microbatches), {});
    results_.clear();
    const auto microbatches = plan_.n_microbatches;
    if (local(0)) {
      if (args.tensors().empty())
        throw_error<ArgumentError>("rank {} has stage 0: pass its arguments", group_.rank());
      args_ = split_batch(args, microbatches, options_.chunk_dim, "an argument");
    }
    const bool has_target = !target.tensors().empty();
    if (local(plan_.num_stages - 1) && loss_fn_ && (*backward_ || has_target)) {
      if (!has_target)
        throw_error<ArgumentError>("rank {} has the last stage: pass its target", group_.rank());
      targets_ = split_batch(target, microbatches, options_.chunk_dim, "the target");
    }
  }

  void begin() {
    shared_.begin_run();
    if (!*backward_) return;
    for (const auto& [index, stage] : stages_) stage.shards().drop_zeroed_gradients();
    shared_.begin_step();
    for (const auto& [index, stage] : stages_) stage.shards().accumulate();
  }

  std::optional<AnyPyTree> perform_all(Tensors* losses) {
    begin();
    for (const auto& action : plan_.pipeline_order[static_cast<std::size_t>(group_.rank())]) {
      if (!action) continue;
      for_each_part(*action,
                    [&](const Action& part) { at_action(group_.rank(), part, [&] { perform(part); }); });
    }
    messages_.wait_for_sends();
    if (*backward_) {
      shared_.sum_tied(divisor());
      for (const auto& [index, stage] : stages_) stage.shards().note_gradients();
    }
    return finish(losses);
  }

  void perform(const Action& action) {
    switch (action.computation_type) {
      case FORWARD:
        return forward(action);
      case SEND_F:
        return messages_.send_forward(action, local(action.stage_index)->outputs(*action.microbatch_index));
      case RECV_F:
        return messages_.post_forward(action);
      case UNSHARD:
        return or_function(action, [&] { local(action.stage_index)->shards().unshard(); });
      case RESHARD:
        return or_function(action, [&] { local(action.stage_index)->shards().reshard(); });
      default:
        if (*backward_) perform_backward(action);
    }
  }

  void or_function(const Action& action, const auto& body) {
    const auto found = functions_.find(action.computation_type);
    if (found != functions_.end()) return found->second(action);
    body();
  }

  void perform_backward(const Action& action) {
    const int microbatch = action.microbatch_index.value_or(0);
    switch (action.computation_type) {
      case RECV_B:
        return messages_.post_backward(action, local(action.stage_index)->outputs(microbatch));
      case SEND_B:
        return messages_.send_backward(action, take_arrived(action.stage_index, microbatch));
      case REDUCE_GRAD:
        return or_function(action, [&] { reduce(action.stage_index); });
      default:
        backward(action);
    }
  }

  void reduce(int stage) {
    const auto& shards = local(stage)->shards();
    if (shards.empty()) return shared_.reduce(stage, divisor());
    shards.reduce(divisor());
  }

  void forward(const Action& action) {
    const auto arguments = inputs(action);
    timed(action, [&] { compute(action, arguments); });
  }

  void compute(const Action& action, const AnyPyTree& arguments) {
    const int stage = action.stage_index, microbatch = *action.microbatch_index;
    const auto output = local(stage)->forward(microbatch, arguments);
    if (stage + 1 < plan_.num_stages) return;
    if (options_.return_outputs) results_.insert_or_assign(microbatch, detached(output));
    if (targets_.empty()) return;
    const auto index = static_cast<std::size_t>(microbatch);
    const auto loss = loss_fn_(output, targets_[index]);
    if (!loss.defined() || loss.numel() != 1)
      throw_error<ArgumentError>("the loss has {} elements; it must have one, e.g. by mean()",
                                 loss.defined() ? loss.numel() : 0);
    if (*backward_ && !loss.requires_grad())
      throw_error<ArgumentError>("the loss does not depend on parameters, so it has no gradients");
    losses_[index] = loss.detach();
    if (*backward_) local(stage)->set_loss(microbatch, loss);
  }

  AnyPyTree inputs(const Action& action) {
    const int stage = action.stage_index, microbatch = *action.microbatch_index;
    if (stage == 0) return args_[static_cast<std::size_t>(microbatch)];
    auto* before = local(stage - 1);
    if (!before) return messages_.take_forward(action);
    Tensors result;
    for (const auto& output : before->outputs(microbatch))
      result.push_back(output.detach().set_requires_grad(output.requires_grad()));
    return result;
  }

  void backward(const Action& action) {
    const int stage = action.stage_index, microbatch = *action.microbatch_index;
    Tensors gradients;
    if (action.computation_type != BACKWARD_WEIGHT) {
      if (stage + 1 == plan_.num_stages) {
        gradients = {at::ones_like(local(stage)->outputs(microbatch).at(0))};
      } else if (local(stage + 1)) {
        gradients = take_arrived(stage + 1, microbatch);
      } else {
        gradients = messages_.take_backward(action);
      }
    }
    Tensors result;
    timed(action, [&] { result = local(stage)->backward(microbatch, action.computation_type, gradients); });
    if (action.computation_type != BACKWARD_WEIGHT && stage > 0)
      arrived_[{stage, microbatch}] = std::move(result);
  }

  std::optional<AnyPyTree> finish(Tensors* losses) {
    for (auto& [index, stage] : stages_) stage.clear();
    args_.clear();
    if (!local(plan_.num_stages - 1)) return std::nullopt;
    if (losses) *losses = targets_.empty() ? Tensors{} : losses_;
    targets_.clear();
    if (results_.empty()) return std::nullopt;
    std::vector<AnyPyTree> batches;
    for (auto& [microbatch, output] : results_) batches.push_back(std::move(output));
    results_.clear();
    return merge_batches(batches, options_.chunk_dim);
  }

  Tensors take_arrived(int stage, int microbatch) {
    return std::move(arrived_.extract({stage, microbatch}).mapped());
  }

  ProcessGroup group_;
  Plan plan_;
  LossFunction loss_fn_;
  PipelineScheduleOptions options_;
  StageMessages messages_;
  SharedGradients shared_;
  std::map<int, LocalStage> stages_;
  std::map<ComputationType, std::function<void(const Action&)>> functions_;
  std::optional<bool> backward_;           // of the last run
  std::vector<AnyPyTree> args_, targets_;  // [micro-batch]
  Tensors losses_;                         // [micro-batch]
  std::map<int, AnyPyTree> results_;       // by micro-batch
  std::vector<TimedAction> timeline_;
  std::map<std::pair<int, int>, Tensors> arrived_;  // gradients of a stage's inputs
};

PipelineStage::PipelineStage(std::shared_ptr<torch::nn::Module> submodule, Forward forward, int stage_index,
                             int num_stages, const PipelineStageOptions& options)
    : submodule_(std::move(submodule)),
      forward_(std::move(forward)),
      stage_index_(stage_index),
      num_stages_(num_stages),
      options_(options) {
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

PipelineSchedule::PipelineSchedule(const std::vector<PipelineStage>& stages, const Plan& plan,
                                   LossFunction loss_fn, const PipelineScheduleOptions& options,
                                   std::source_location where) {
  const CallerPlace place(where);
  const auto groups = groups_of(stages, kScheduleUser);
  auto parts = parts_on_all_ranks(stages, plan, options, loss_fn != nullptr, groups, where);
  runtime_ = std::make_unique<Runtime>(groups.front(), stages, std::move(parts), std::move(loss_fn), options);
}
PipelineSchedule::~PipelineSchedule() = default;
PipelineSchedule::PipelineSchedule(PipelineSchedule&&) noexcept = default;
PipelineSchedule& PipelineSchedule::operator=(PipelineSchedule&&) noexcept = default;

std::optional<AnyPyTree> PipelineSchedule::run_step(const AnyPyTree& args, const AnyPyTree& target,
                                                    Tensors* losses, std::source_location where) {
  const CallerPlace place(where);
  if (!runtime_->has_loss())
    throw_error<ArgumentError>("step() needs a loss_fn on every rank; or call eval()");
  if (!c10::GradMode::is_enabled()) throw_error<ArgumentError>("step() under no_grad; call eval()");
  return runtime_->run(args, target, losses, true, where);
}

std::optional<AnyPyTree> PipelineSchedule::run_eval(const AnyPyTree& args, const AnyPyTree& target,
                                                    Tensors* losses, std::source_location where) {
  const CallerPlace place(where);
  const c10::NoGradGuard no_grad;
  return runtime_->run(args, target, losses, false, where);
}

void PipelineSchedule::register_custom_function(ComputationType computation_type,
                                                std::function<void(const Action&)> function) {
  runtime_->register_function(computation_type, std::move(function));
}

Timeline PipelineSchedule::timeline(std::source_location where) const { return runtime_->timeline(where); }

double PipelineSchedule::clip_grad_norm_(double max_norm, const ClipGradNormOptions& options,
                                         std::source_location where) const {
  const CallerPlace place(where);
  return runtime_->gradients().clip(max_norm, options, where);
}

const Plan& PipelineSchedule::plan() const { return runtime_->plan(); }

Plan detail::named_plan(const char* name, const std::vector<PipelineStage>& stages, int n_microbatches,
                        std::source_location where) {
  const CallerPlace place(where);
  const auto groups = groups_of(stages, name);
  return modules::tell_on_failure(groups, name, where, [&] {
    return make_plan(name, groups.front().size(), static_cast<int>(stages.size()), n_microbatches);
  });
}

}  // namespace lockstep::pipelining
