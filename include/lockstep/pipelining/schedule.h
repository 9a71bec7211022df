// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Pipeline schedules as data: what each rank does, in which order. PyTorch:
/// `torch.distributed.pipelining.schedules`.
namespace lockstep::pipelining {

/// PyTorch: `_ComputationType`.
enum class ComputationType {
  FORWARD,          ///< F
  BACKWARD_INPUT,   ///< I: gradients of the stage's inputs
  BACKWARD_WEIGHT,  ///< W: gradients of its parameters, after I
  UNSHARD,          ///< gathers the parameters of a stage of fully_shard()
  RESHARD,          ///< frees the gathered parameters
  SEND_F,           ///< the outputs, to the next stage
  RECV_F,           ///< the inputs, from the stage before
  SEND_B,           ///< the gradients of the inputs, to the stage before
  RECV_B,           ///< the gradients of the outputs, from the next stage
  FULL_BACKWARD,    ///< B: I and W in one
  OVERLAP_F_B,      ///< several actions of different stages
  REDUCE_GRAD,      ///< after the stage's last B or W
};

/// One action in PyTorch's textual form: `2F0` is the forward of stage 2 and micro-batch 0, `1UNSHARD` has no
/// micro-batch, `(0F1;3B0)OVERLAP_F_B` has parts. PyTorch: `_Action`.
struct Action {
  int stage_index = -1;                                         ///< -1 for OVERLAP_F_B
  ComputationType computation_type = ComputationType::FORWARD;  ///< what is done
  std::optional<int> microbatch_index = {};                     ///< nullopt for actions of a whole stage
  std::vector<Action> sub_actions = {};                         ///< of OVERLAP_F_B, else empty

  /// As PyTorch prints it: "0F1", stage, action, micro-batch.
  std::string str() const;
  /// Throws ArgumentError. Surrounding spaces are allowed.
  static Action from_str(std::string_view text);
  /// F, B, I, W or OVERLAP_F_B.
  bool is_compute_op() const;
  bool operator==(const Action&) const = default;
};

/// The actions of a rank; nullopt is a step in which it is idle.
using Actions = std::vector<std::optional<Action>>;

/// The actions of all ranks. Each stage is on one rank.
struct Plan {
  std::vector<Actions> pipeline_order;  ///< [rank]
  int num_stages = 0;                   ///< of all ranks
  int n_microbatches = 0;               ///< of a step
};

/// The compute actions of PyTorch's schedule of this name, which may have any case and begin with "Schedule":
/// GPipe, 1F1B (one stage on each rank), Interleaved1F1B, LoopedBFS, InterleavedZeroBubble (stage i on rank
/// i % pp_group_size), ZBVZeroBubble, DualPipeV (two stages on each rank, i and 2 * pp_group_size - 1 - i).
/// GPipe and 1F1B include REDUCE_GRAD, as in PyTorch. Throws ArgumentError for a name that does not exist and
/// for numbers that PyTorch refuses. PyTorch: `pipeline_order` of `get_schedule_class(name)(...)`.
Plan make_plan(std::string_view schedule_name, int pp_group_size, int n_local_stages, int n_microbatches);

/// A line for each rank, its actions separated by commas; nothing is an idle step. Throws ArgumentError that
/// names the line and column. The numbers of stages and micro-batches follow from the actions. WAIT_SEND_F,
/// WAIT_SEND_B and WAIT_REDUCE_GRAD of PyTorch 2.15 are left out: a schedule waits where it must. PyTorch:
/// `_load_csv` and `_dump_csv`.
Plan plan_from_csv(std::string_view csv);
/// A line per rank with its actions, as plan_from_csv() and PyTorch read it.
std::string to_csv(const Plan& plan);

/// The rank of each stage. Throws ArgumentError for a stage on no rank or on two. PyTorch:
/// `stage_index_to_group_rank`.
std::vector<int> stage_to_rank(const Plan& plan);

/// Replaces I by B where the W of the same stage and micro-batch follows. PyTorch: `_merge_bw`.
Plan merge_bw(const Plan& plan);
/// Adds UNSHARD before a stage is needed, for `max_active_stages` stages ahead, and RESHARD of the others.
/// Several RESHARD in a row are in ascending order; PyTorch's order is that of a Python set. PyTorch:
/// `_add_unshard_reshard`.
Plan add_unshard_reshard(const Plan& plan, int max_active_stages = 3);
/// Adds REDUCE_GRAD after the last B or W of each stage. PyTorch: `_add_reduce_grad`.
Plan add_reduce_grad(const Plan& plan);
/// Adds SEND and RECV between stages on different ranks, each RECV as early as its SEND. Throws ArgumentError
/// for a plan in which no rank can go on. PyTorch: `_add_send_recv`.
Plan add_send_recv(const Plan& plan);
/// All of the last three, on the compute actions of `plan`. PyTorch: `_prepare_schedule_with_comms`.
Plan add_comms(const Plan& plan);

/// The times of a stage's actions, in any unit.
struct StageTimes {
  double forward = 1;  ///< seconds, or any other unit
  double input = 1;    ///< the gradients of the inputs
  double weight = 1;   ///< FULL_BACKWARD takes input + weight
};

/// An action in a simulated or measured run.
struct TimedAction {
  int rank;       ///< rank of the pipeline
  Action action;  ///< F, B, I or W
  double start;   ///< in the unit of StageTimes
  double end;     ///< in the unit of StageTimes
};

/// A step, simulated or measured.
struct Timeline {
  std::vector<TimedAction> actions;    ///< ordered by rank, then by start
  double step_time = 0;                ///< from the first start to the last end
  double idle_share = 0;               ///< of step_time, in which a rank computes nothing; mean over ranks
  std::vector<int> peak_microbatches;  ///< [rank] = the most forwards whose W or B is still to come
};

/// Throws ArgumentError unless every stage has each micro-batch's F once, then B once or I once and W once,
/// in an order that is possible. With SEND and RECV: each message has both sides, and messages between two
/// ranks are sent and received in one order. With REDUCE_GRAD: each stage has one, after its last backward.
/// The message names rank, step, stage, micro-batch and action.
void check_plan(const Plan& plan);

/// Runs check_plan(), then the plan with these times, one entry for all stages or one for each stage.
/// A message takes `message_time` from the end of the action that makes it. Throws ArgumentError for a plan
/// that deadlocks, with the action at which each rank waits. Works with and without SEND and RECV.
Timeline simulate(const Plan& plan, const std::vector<StageTimes>& times = {{}}, double message_time = 0);

/// The means of a measured step's times, for simulate(). Where backward is not in two parts, both have half
/// of it. Throws ArgumentError for a stage without actions.
std::vector<StageTimes> stage_times(const Timeline& timeline);

/// The step as an SVG image: a row for each rank, the micro-batch in each box.
std::string draw_svg(const Timeline& timeline);

}  // namespace lockstep::pipelining
