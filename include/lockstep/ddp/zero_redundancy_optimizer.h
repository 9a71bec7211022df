// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/comm/process_group.h>

namespace lockstep {

namespace modules {
class ChangeAgreement;
}

namespace ddp {

struct OwnedParameter;
class SharedParameters;

/// The ranks of a ZeroRedundancyOptimizer that is under construction.
struct ZeroStart {
  ZeroStart(const std::optional<ProcessGroup>& process_group, std::source_location from);
  /// The other ranks' construction throws `reason`, unless they have compared their parameters already.
  void tell(const std::exception& reason) const;

  ProcessGroup group;          ///< group of the optimizer
  std::source_location where;  ///< line of the program that constructs it
  bool has_compared = false;   ///< whether the ranks have compared their parameters
};

/// The part of ZeroRedundancyOptimizer that elastic::run() calls, for every Base.
class RejoiningOptimizer {
 public:
  RejoiningOptimizer() = default;
  virtual ~RejoiningOptimizer() = default;
  RejoiningOptimizer(const RejoiningOptimizer&) = delete;
  RejoiningOptimizer& operator=(const RejoiningOptimizer&) = delete;
  /// Throws ArgumentError if rejoin() is not supported, naming what prevents it.
  virtual void require_can_rejoin() const = 0;
  /// Begins anew over the default group, which has been formed again with as many ranks. Each rank keeps its states,
  /// until the caller restores others. All ranks call it in the same order.
  virtual void rejoin() = 0;
};

/// The part of ZeroRedundancyOptimizer that all optimizers share.
class ZeroShards {
 public:
  /// A line of the program.
  using Where = std::source_location;

  ZeroShards(torch::optim::Optimizer& optimizer, ZeroStart& start);
  ~ZeroShards();
  ZeroShards(const ZeroShards&) = delete;
  ZeroShards& operator=(const ZeroShards&) = delete;
  /// `step_all` steps every parameter of the optimizer that has a gradient.
  void step(const std::function<void()>& step_all);
  /// Gathers the states of all ranks on rank `to`.
  void consolidate(int to, Where where);
  void consolidate() { consolidate(0, where_); }
  /// As RejoiningOptimizer's.
  void require_can_rejoin() const;
  /// As RejoiningOptimizer's.
  void rejoin();
  /// Throws Error on a rank that does not hold the states of all ranks.
  void check_complete() const;
  /// How ranks share the memory of a parameter; nullopt if only this rank has it.
  std::optional<optim::DistributedStates::Sharing> sharing_of(const at::Tensor& parameter) const;
  /// Sends each parameter from its owner to the other ranks.
  void share_parameters(Where where);
  /// The rank that steps each parameter.
  const std::vector<int>& owners();

 private:
  void partition();
  std::string parameters_text(Where where) const;
  void compare_parameters(const std::string& lines, Where where) const;
  // A parameter, once, however often it is tied.
  std::vector<OwnedParameter> distinct_parameters();
  // A parameter in the last step.
  struct Seen {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // weak: no other tensor gets the address
    at::ScalarType dtype;
    c10::Device device;
    bool trained;
    std::vector<std::int64_t> sizes;
  };
  std::string change_of(const Seen& seen, const at::Tensor& parameter) const;
  void note_parameters();
  void agree_on_changes();
  void step_together(const std::function<void()>& step_all);
  void forget_states_of_others();

  torch::optim::Optimizer& optimizer_;
  ProcessGroup group_;
  Where where_;
  std::vector<int> owners_;
  std::vector<Seen> seen_;  // [index in the parameter groups]
  std::unique_ptr<modules::ChangeAgreement> agreement_;
  std::unique_ptr<SharedParameters> shared_;  // after share_parameters()
  bool is_complete_ = false;
};

/// The type of braces as the options of ZeroRedundancyOptimizer: the arguments of `Base` by name, if it has them.
template <typename Base>
struct ArgumentsByName {
  /// The learning rate by name. Does not compile.
  struct Rate {
    template <typename Number>
    Rate(const Number& /*rate*/) {  // NOLINT: implicit by design
      static_assert(
          sizeof(Number) == 0,
          "write the options of its class, such as torch::optim::AdamOptions(1e-3) for Adam, or take the "
          "class of the same name in lockstep::optim, which has arguments by name");
    }
  };
  /// Python's arguments by name, which LibTorch's classes do not take.
  struct WriteTheOptionsOfBase {
    Rate lr;                                ///< does not compile
    double momentum = 0;                    ///< of SGD
    std::tuple<double, double> betas = {};  ///< of Adam and AdamW
    double eps = 0;                         ///< of Adam and AdamW
    double weight_decay = 0;                ///< of all
  };
  using type = WriteTheOptionsOfBase;  ///< does not compile
};
template <typename Base>
  requires requires { typename Base::Arguments; }
struct ArgumentsByName<Base> {
  using type = typename Base::Arguments;  ///< by name
};
/// The `type` of ArgumentsByName.
template <typename Base>
using ArgumentsOf = typename ArgumentsByName<Base>::type;

}  // namespace ddp

/// An optimizer whose states are distributed over the ranks of a group: each parameter belongs to one rank,
/// which steps it and sends it to the others. It has the states of its own parameters only, 1 / size() of
/// them by number of elements. The parameters are those of `Base` on one process, to the bit. ZeRO stage 1;
/// PyTorch: `torch.distributed.optim.ZeroRedundancyOptimizer`.
///
///     DistributedDataParallel ddp(net);
///     ZeroRedundancyOptimizer<optim::AdamW> optimizer(ddp->parameters(), {.lr = 1e-3});
///
/// `Base`, PyTorch's `optimizer_class`, is an optimizer of LibTorch but LBFGS, a fused one, or one of
/// optim/optimizers.h. It has all parameter groups, so schedulers, GradScaler and load_state_dict() take it
/// as they take `Base`; so do Trainer and TrainingState, which save the states of all ranks. All ranks have
/// the same parameters, groups and gradients, e.g. by DistributedDataParallel, and call step() and
/// consolidate_state_dict() together.
template <typename Base>
class ZeroRedundancyOptimizer : public Base, public optim::DistributedStates, public ddp::RejoiningOptimizer {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Base>, "Base must be an optimizer");
  static_assert(!std::is_base_of_v<torch::optim::LBFGS, Base>,
                "LBFGS steps all parameters along one direction, so ranks cannot step some of them each");

 public:
  /// A function that computes the loss again, for optimizers that need it.
  using LossClosure = torch::optim::Optimizer::LossClosure;
  /// A line of the program.
  using Where = std::source_location;

  /// `process_group`: default: the default group. Throws ArgumentError for a parameter that an optimizer must
  /// not own: one that is not a leaf of autograd, such as a part or copy of a parameter, or not dense. Throws
  /// DesyncError on all ranks if their parameters differ. Both name the caller's line.
  template <typename Options = ddp::ArgumentsOf<Base>>
  ZeroRedundancyOptimizer(std::vector<at::Tensor> params, const Options& defaults,
                          const std::optional<ProcessGroup>& process_group = std::nullopt,
                          Where where = Where::current())
      : ZeroRedundancyOptimizer(ddp::ZeroStart(process_group, where), std::move(params), defaults) {}
  template <typename Options = ddp::ArgumentsOf<Base>>
  ZeroRedundancyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& params,
                          const Options& defaults,
                          const std::optional<ProcessGroup>& process_group = std::nullopt,
                          Where where = Where::current())
      : ZeroRedundancyOptimizer(ddp::ZeroStart(process_group, where), params, defaults) {}
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// Steps this rank's parameters and makes every rank's parameters equal. `closure` runs once, before.
  /// Parameters may be frozen, unfrozen or converted to another dtype between steps, on all ranks alike.
  /// Throws on all ranks if one rank changes them, if the shape of one has changed, and if the step of one
  /// rank throws; the error names the parameter.
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const c10::AutoGradMode with_gradients(true);
      loss = closure();
    }
    shards_.step([this] { Base::step(); });
    return loss;
  }

  /// Gives rank `to` the states of all ranks until its next step(), so that state_dict() can have them. On
  /// the other ranks state_dict() throws ArgumentError.
  void consolidate_state_dict(int to = 0, Where where = Where::current()) { shards_.consolidate(to, where); }

  /// Moves the parameters to memory that all ranks of the group map, so that a host has them once. step()
  /// then updates them in place and sends nothing. It throws on all ranks if a parameter no longer lies
  /// there, e.g. after `net->to(dtype)` or `torch::load(net, ...)`: call share_parameters() again. All ranks
  /// call it, and get the values that each parameter's owner has. Parameters stay the same tensors; views and
  /// `data()` of before keep the old memory. From then on, a rank that writes to a parameter writes for all
  /// ranks: write the same values on all, or on one rank between two barriers. After an error in step(),
  /// parameters may be of two steps, so every later access throws: load the last checkpoint into a new
  /// module. All ranks make the same number of steps, without Join. A host has one copy, also with several
  /// NUMA nodes. Throws ArgumentError unless the backend is shm, and for parameters of a GPU,
  /// parallelize_module() or fully_shard().
  void share_parameters(Where where = Where::current()) { shards_.share_parameters(where); }

  /// The rank within the group that steps each parameter, in the order of the parameter groups: in each group
  /// the largest first, each to the rank with the fewest elements so far, as in PyTorch.
  const std::vector<int>& owners() { return shards_.owners(); }

 private:
  void check_complete() const override { shards_.check_complete(); }
  void consolidate() override { shards_.consolidate(); }
  void require_can_rejoin() const override { shards_.require_can_rejoin(); }
  void rejoin() override { shards_.rejoin(); }
  std::optional<Sharing> sharing_of(const at::Tensor& parameter) const override {
    return shards_.sharing_of(parameter);
  }

  template <typename Parameters, typename Options>
  ZeroRedundancyOptimizer(ddp::ZeroStart&& start, Parameters&& params, const Options& defaults) try
      : Base(std::forward<Parameters>(params), defaults), shards_(*this, start) {
  } catch (const std::exception& error) {
    start.tell(error);  // and throws it on
  }

  ddp::ZeroShards shards_;
};

namespace optim {
using lockstep::ZeroRedundancyOptimizer;
}  // namespace optim

}  // namespace lockstep
