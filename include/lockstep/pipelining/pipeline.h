// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/device/device.h>
#include <lockstep/device/pytree.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/nn/wrapped_module.h>
#include <lockstep/pipelining/schedule.h>
#include <lockstep/pipelining/schedule_arguments.h>

/// Pipeline parallelism: each rank has some layers of a model, and micro-batches pass from rank to rank.
/// PyTorch: `torch.distributed.pipelining`.
namespace lockstep::pipelining {

/// Options of PipelineStage.
struct PipelineStageOptions {
  /// The ranks of the pipeline. Default: the default group.
  std::optional<ProcessGroup> group = {};
  /// The ranks that train the same stage on other data, e.g. mesh["dp"].get_group(). REDUCE_GRAD averages the
  /// gradients of the stage over them, once in each step; a parameter that has none on all of them gets none.
  /// The first run copies parameters and buffers from rank 0 of this group to the others, as
  /// DistributedDataParallel does.
  std::optional<ProcessGroup> data_parallel_group = {};
  /// Parameters that are the same in several stages, by a name that these stages agree on. The first run
  /// copies the values of the lowest stage to the others; each step sums the gradients, in the order of the
  /// stages. Not in PyTorch.
  std::map<std::string, at::Tensor> tied_parameters = {};
  /// Where the stage receives tensors. Default: the device of its parameters or buffers, or the CPU.
  std::optional<at::Device> device = {};
};

/// A part of a model, the `stage_index`-th of `num_stages`. Copies refer to the same module. If fully_shard()
/// distributes it, UNSHARD gathers its parameters, RESHARD frees them, and REDUCE_GRAD reduces its gradients.
/// PyTorch: `PipelineStage`.
class PipelineStage {
 public:
  /// From the value of a micro-batch in the first stage, and a vector of tensors in the others. AnyPyTree
  /// converts, so `[](const Batch& batch) { ... }` is one as well.
  using Forward = std::function<AnyPyTree(const AnyPyTree&)>;

  /// `submodule`: a module holder, a shared_ptr of a module, or an AnyModule, which returns one tensor. Its
  /// forward() takes one to three tensors, or one value: in the first stage that of a micro-batch, of any
  /// PyTree type, in the others a vector of tensors. It returns a value of any PyTree type, and the next
  /// stage receives its tensors. Throws ArgumentError.
  template <typename Module>
  PipelineStage(const Module& submodule, int stage_index, int num_stages,
                const PipelineStageOptions& options = {})
      : PipelineStage(pointer_of(submodule), forward_of(submodule), stage_index, num_stages, options) {}
  /// With PyTorch's fourth argument, which replaces PipelineStageOptions::device.
  template <typename Module>
  PipelineStage(const Module& submodule, int stage_index, int num_stages, DeviceId device,
                const PipelineStageOptions& options = {})
      : PipelineStage(submodule, stage_index, num_stages, with_device(options, device)) {}

  /// `submodule` has the parameters, and `forward` computes a micro-batch with them.
  PipelineStage(std::shared_ptr<torch::nn::Module> submodule, Forward forward, int stage_index,
                int num_stages, const PipelineStageOptions& options);

  /// The number of this stage, from 0.
  int stage_index() const { return stage_index_; }
  /// The number of stages of the pipeline.
  int num_stages() const { return num_stages_; }
  /// Whether it takes the arguments of step().
  bool is_first() const { return stage_index_ == 0; }
  /// Whether it computes the outputs and the losses.
  bool is_last() const { return stage_index_ + 1 == num_stages_; }
  /// The module of this stage.
  const std::shared_ptr<torch::nn::Module>& submodule() const { return submodule_; }
  /// The options that the constructor was given.
  const PipelineStageOptions& options() const { return options_; }
  /// The function that runs a micro-batch.
  const Forward& forward() const { return forward_; }

 private:
  static PipelineStageOptions with_device(const PipelineStageOptions& options, at::Device device) {
    auto complete = options;
    complete.device = device;
    return complete;
  }

  template <typename Module>
  static std::shared_ptr<torch::nn::Module> pointer_of(const Module& module) {
    if constexpr (std::same_as<Module, torch::nn::AnyModule>) {
      return module.ptr();
    } else {
      return nn::WrappedBy<Module>::pointer(module);
    }
  }

  template <typename Module>
  static Forward forward_of(const Module& module) {
    if constexpr (std::same_as<Module, torch::nn::AnyModule>) {
      return [module](const Tensors& x) mutable -> AnyPyTree {
        switch (x.size()) {
          case 1:
            return module.forward(x[0]);
          case 2:
            return module.forward(x[0], x[1]);
          case 3:
            return module.forward(x[0], x[1], x[2]);
          default:
            refuse_inputs(x.size());
        }
      };
    } else {
      return [pointer = nn::WrappedBy<Module>::pointer(module)](const AnyPyTree& x) {
        return call(*pointer, x);
      };
    }
  }

  // Shows whether forward() takes a tensor, rather than a type that can be made from one.
  struct TensorProbe {
    operator const at::Tensor&() const;
  };

  template <typename Callee>
  static AnyPyTree call(Callee& module, const AnyPyTree& value) {
    const auto x = value.tensors();
    constexpr TensorProbe kProbe;
    if constexpr (requires { module.forward(kProbe); })
      if (x.size() == 1) return module.forward(x[0]);
    if constexpr (requires { module.forward(kProbe, kProbe); })
      if (x.size() == 2) return module.forward(x[0], x[1]);
    if constexpr (requires { module.forward(kProbe, kProbe, kProbe); })
      if (x.size() == 3) return module.forward(x[0], x[1], x[2]);
    if constexpr (std::is_invocable_v<decltype([](auto& m, const AnyPyTree& all) -> decltype(m.forward(all)) {
                                        return m.forward(all);
                                      }),
                                      Callee&, const AnyPyTree&>) {
      return module.forward(value);
    } else if constexpr (requires { module.forward(at::TensorList(x)); }) {
      return module.forward(at::TensorList(x));
    }
    refuse_inputs(x.size());
  }

  [[noreturn]] static void refuse_inputs(std::size_t count);

  std::shared_ptr<torch::nn::Module> submodule_;
  Forward forward_;
  int stage_index_;
  int num_stages_;
  PipelineStageOptions options_;
};

/// Runs a plan. PyTorch: `PipelineScheduleMulti`, and `_PipelineScheduleRuntime` for a plan of your own.
///
/// All ranks of the group make schedules with the same plan and call step() and eval() the same number of
/// times, from one thread. The first step(), and the first one after eval(), exchanges the shapes between
/// stages, as eval() does; further ones must have the same shapes, dtypes and requires_grad. An error in an
/// action names rank, stage, micro-batch and action. ArgumentError, TimeoutError, PeerLost and DesyncError
/// keep their type, others become Error; waits end with the group's timeout. After an error in an action the
/// schedule cannot go on.
class PipelineSchedule {
 public:
  /// `stages`: those that `plan` has on this rank. Without SEND and RECV, add_comms() adds them. Checks the
  /// plan with simulate(). With them, each stage has a REDUCE_GRAD after its last backward. Throws
  /// ArgumentError, and DesyncError on all ranks if one refuses its stages or plan, or if plans or options
  /// differ. Collective over the pipeline's group, and over data_parallel_group.
  PipelineSchedule(const std::vector<PipelineStage>& stages, const Plan& plan, LossFunction loss_fn = {},
                   const PipelineScheduleOptions& options = {},
                   std::source_location where = std::source_location::current());
  ~PipelineSchedule();
  PipelineSchedule(PipelineSchedule&&) noexcept;
  PipelineSchedule& operator=(PipelineSchedule&&) noexcept;

  /// One forward and backward of the whole batch. `args`: the inputs of stage 0, on its rank. `target`: on
  /// the rank of the last stage. Each of their tensors is split in chunk_dim, whose size is a multiple of the
  /// number of micro-batches; what a value has beside its tensors goes to each micro-batch, and so does a
  /// tensor that visit_tensors() of a struct leaves out. Gradients are added to those of the parameters, and
  /// then scaled as a whole: call zero_grad() before. `losses`: on the rank of the last stage, the loss of
  /// each micro-batch.
  ///
  /// Returns there the outputs of the whole batch, without history: their tensors, or as `Output` the type
  /// that the last stage returns. Scalars become a tensor with an element for each micro-batch; what is not a
  /// tensor is that of the first one. A value whose tensors AnyPyTree cannot replace is returned as its
  /// tensors only. Elsewhere returns an empty `Output`. Throws ArgumentError.
  template <PyTree Output = Tensors>
  Output step(const AnyPyTree& args = {}, const AnyPyTree& target = {}, LossList losses = nullptr,
              std::source_location where = std::source_location::current()) {
    const auto outputs = run_step(args, target, losses, where);
    return outputs ? outputs->template get<Output>() : Output{};
  }
  /// With arguments by name, for outputs that are tensors.
  Tensors step(const StepArguments& arguments, std::source_location where = std::source_location::current()) {
    return step<Tensors>(arguments.args, arguments.target, arguments.losses,
                         where);  // no template: is preferred
  }
  /// Runs the forward passes of step() alone, without gradients. `target` is optional.
  template <PyTree Output = Tensors>
  Output eval(const AnyPyTree& args = {}, const AnyPyTree& target = {}, LossList losses = nullptr,
              std::source_location where = std::source_location::current()) {
    const auto outputs = run_eval(args, target, losses, where);
    return outputs ? outputs->template get<Output>() : Output{};
  }
  /// With arguments by name, for outputs that are tensors.
  Tensors eval(const StepArguments& arguments, std::source_location where = std::source_location::current()) {
    return eval<Tensors>(arguments.args, arguments.target, arguments.losses,
                         where);  // no template: is preferred
  }

  /// Runs `function` in place of UNSHARD, RESHARD or REDUCE_GRAD. Throws ArgumentError for other actions.
  void register_custom_function(ComputationType computation_type,
                                std::function<void(const Action&)> function);

  /// The last run: how long each rank computed, and when, in seconds, without waits for messages. On a GPU,
  /// the times of launching. Hosts are aligned by their clocks. Collective. Not in PyTorch.
  Timeline timeline(std::source_location where = std::source_location::current()) const;

  /// Scales the gradients of all stages so that the norm of the whole model's gradients is at most
  /// `max_norm`: tied parameters count once, and parameters that fully_shard() or parallelize_module()
  /// distributes count whole. Returns the norm before, computed in float64, with the same bits on all ranks.
  /// Call it after step(). Collective. Throws NonFiniteError with error_if_nonfinite. Not in PyTorch, where
  /// `clip_grad_norm_` has the norm of a rank's own stages.
  double clip_grad_norm_(double max_norm, const ClipGradNormOptions& options = {},
                         std::source_location where = std::source_location::current()) const;

  /// The plan with its communication. PyTorch: `pipeline_order_with_comms`.
  const Plan& plan() const;

 private:
  class Runtime;

  std::optional<AnyPyTree> run_step(const AnyPyTree& args, const AnyPyTree& target, Tensors* losses,
                                    std::source_location where);
  std::optional<AnyPyTree> run_eval(const AnyPyTree& args, const AnyPyTree& target, Tensors* losses,
                                    std::source_location where);

  std::unique_ptr<Runtime> runtime_;
};

namespace detail {
// A string as an argument of a template.
template <std::size_t size>
struct ScheduleName {
  char text[size];
  consteval ScheduleName(const char (&name)[size]) { std::copy_n(name, size, text); }
};
Plan named_plan(const char* name, const std::vector<PipelineStage>& stages, int n_microbatches,
                std::source_location where);
}  // namespace detail

/// The schedule of make_plan() with this name, for any number of stages on each rank.
template <detail::ScheduleName name>
class PipelineScheduleMulti : public PipelineSchedule {
 public:
  PipelineScheduleMulti(const std::vector<PipelineStage>& stages, int n_microbatches,
                        LossFunction loss_fn = {}, const PipelineScheduleOptions& options = {},
                        std::source_location where = std::source_location::current())
      : PipelineSchedule(stages, detail::named_plan(name.text, stages, n_microbatches, where),
                         std::move(loss_fn), options, where) {}
  /// With the loss and what follows by name: `Schedule1F1B(stage, 4, {.loss_fn = loss})`.
  template <typename = void>
  PipelineScheduleMulti(const std::vector<PipelineStage>& stages, int n_microbatches,
                        const PipelineLossArguments& arguments,
                        std::source_location where = std::source_location::current())
      : PipelineScheduleMulti(stages, n_microbatches, arguments.loss_fn,
                              {.scale_grads = arguments.scale_grads,
                               .chunk_dim = arguments.chunk_dim,
                               .return_outputs = arguments.return_outputs},
                              where) {}
  /// With arguments by name.
  PipelineScheduleMulti(const std::vector<PipelineStage>& stages, const PipelineScheduleArguments& arguments,
                        std::source_location where = std::source_location::current())
      : PipelineScheduleMulti(stages, arguments.n_microbatches, arguments.loss_fn,
                              {.scale_grads = arguments.scale_grads,
                               .chunk_dim = arguments.chunk_dim,
                               .return_outputs = arguments.return_outputs},
                              where) {}
};
/// The schedule of make_plan() with this name, for exactly one stage on each rank.
template <detail::ScheduleName name>
class PipelineScheduleSingle : public PipelineScheduleMulti<name> {
 public:
  PipelineScheduleSingle(const PipelineStage& stage, int n_microbatches, LossFunction loss_fn = {},
                         const PipelineScheduleOptions& options = {},
                         std::source_location where = std::source_location::current())
      : PipelineScheduleMulti<name>({stage}, n_microbatches, std::move(loss_fn), options, where) {}
  /// With the loss and what follows by name: `Schedule1F1B(stage, 4, {.loss_fn = loss})`.
  template <typename = void>
  PipelineScheduleSingle(const PipelineStage& stage, int n_microbatches,
                         const PipelineLossArguments& arguments,
                         std::source_location where = std::source_location::current())
      : PipelineScheduleSingle(stage, n_microbatches, arguments.loss_fn,
                               {.scale_grads = arguments.scale_grads,
                                .chunk_dim = arguments.chunk_dim,
                                .return_outputs = arguments.return_outputs},
                               where) {}
  /// With arguments by name.
  PipelineScheduleSingle(const PipelineStage& stage, const PipelineScheduleArguments& arguments,
                         std::source_location where = std::source_location::current())
      : PipelineScheduleMulti<name>({stage}, arguments, where) {}
};

/// PyTorch: the classes of these names.
using ScheduleGPipe = PipelineScheduleSingle<"GPipe">;
/// One forward, one backward. PyTorch: `Schedule1F1B`.
using Schedule1F1B = PipelineScheduleSingle<"1F1B">;
/// One forward, one backward, with several stages per rank. PyTorch: `ScheduleInterleaved1F1B`.
using ScheduleInterleaved1F1B = PipelineScheduleMulti<"Interleaved1F1B">;
/// All micro-batches of a stage, then of the next one of the rank. PyTorch: `ScheduleLoopedBFS`.
using ScheduleLoopedBFS = PipelineScheduleMulti<"LoopedBFS">;
/// Interleaved 1F1B with backward in two parts. PyTorch: `ScheduleInterleavedZeroBubble`.
using ScheduleInterleavedZeroBubble = PipelineScheduleMulti<"InterleavedZeroBubble">;
/// Two stages per rank in the shape of a V, backward in two parts. PyTorch: `ScheduleZBVZeroBubble`.
using ScheduleZBVZeroBubble = PipelineScheduleMulti<"ZBVZeroBubble">;
/// Two stages per rank in the shape of a V, forward beside backward. PyTorch: `ScheduleDualPipeV`.
using ScheduleDualPipeV = PipelineScheduleMulti<"DualPipeV">;

/// By what split_sequential() makes parts equal.
enum class SplitBy {
  count,       ///< the number of layers
  parameters,  ///< the number of parameters
};

/// The layers of `net` in `num_stages` consecutive parts, whose largest number of layers or of parameters is
/// as small as possible. The parts share the layers with `net`, under their names in it. Throws ArgumentError
/// for fewer layers than stages.
std::vector<torch::nn::Sequential> split_sequential(const torch::nn::Sequential& net, int num_stages,
                                                    SplitBy by = SplitBy::parameters);
/// The same by a cost of each layer, e.g. of measure_layers().
std::vector<torch::nn::Sequential> split_sequential(const torch::nn::Sequential& net, int num_stages,
                                                    const std::vector<double>& costs);

/// Seconds of forward and backward of each layer of `net` for `input`, e.g. a micro-batch: medians of so many
/// runs after a first one that does not count. Layers take and return one tensor. Call it before
/// fully_shard() and parallelize_module(). Gradients, buffers and the random stream of the CPU stay as they
/// are. Collective over the default group, if there is one: its ranks measure at once, and all get the means
/// of their medians. Throws ArgumentError for fewer than 1 repetitions.
std::vector<double> measure_layers(const torch::nn::Sequential& net, const at::Tensor& input,
                                   int repetitions = 5,
                                   std::source_location where = std::source_location::current());

}  // namespace lockstep::pipelining
