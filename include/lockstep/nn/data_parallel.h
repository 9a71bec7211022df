// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/nn/find_tensors.h>
#include <lockstep/nn/wrapped_module.h>

namespace lockstep {

/// Arguments of DataParallel. PyTorch: those of `torch.nn.DataParallel`.
struct DataParallelOptions {
  /// One replica each; the module is on the first of them. `cpu` may be there several times: its replicas
  /// share the cores. Default: all CUDA devices; where there is none the module runs by itself, as in
  /// PyTorch.
  std::vector<c10::Device> device_ids = {};

  /// Where outputs are gathered. Default: device_ids[0].
  std::optional<c10::Device> output_device = std::nullopt;

  /// The dimension along which arguments are cut and outputs put together.
  std::int64_t dim = 0;

  /// Makes a module of the same structure as the wrapped one, for each replica; its values do not matter.
  /// Default: the module's clone(), which LibTorch has for modules derived from torch::nn::Cloneable.
  std::function<std::shared_ptr<torch::nn::Module>()> make_replica = {};
};

namespace nn {
class Replicas;

template <typename T>
concept Scattered = Findable<T> && !HoldsNone<T> && std::copy_constructible<T>;
}  // namespace nn

/// The part of DataParallel that does not depend on the type of the wrapped module.
class DataParallelModule : public torch::nn::Module {
 public:
  ~DataParallelModule() override;

  /// Parameters of the wrapped module, each once even when modules share it, as in Python.
  std::vector<at::Tensor> parameters() const;
  /// The same with names, which begin with "module.".
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;

  const std::vector<c10::Device>& device_ids() const { return options_.device_ids; }
  c10::Device output_device() const;

 protected:
  using Tensors = std::vector<at::Tensor>;
  // Calls replica i with its part of the tensors and returns the tensors that came out.
  using Call = std::function<Tensors(std::size_t, torch::nn::Module&, Tensors)>;
  using IsReplica = std::function<bool(const torch::nn::Module&)>;

  DataParallelModule(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options,
                     const IsReplica& is_replica);

  bool runs_by_itself() const { return options_.device_ids.size() <= 1; }
  // The gathered outputs. `arguments`: how many there are, tensors or not.
  Tensors run(const Tensors& inputs, std::size_t arguments, const Call& call);
  std::size_t replica_count() const { return options_.device_ids.size(); }

 private:
  DataParallelOptions options_;
  std::shared_ptr<torch::nn::Module> original_;
  std::shared_ptr<nn::Replicas> replicas_;  // shared with the graph
};

template <typename Wrapped>
class DataParallelImpl : public DataParallelModule {
 public:
  DataParallelImpl(std::shared_ptr<Wrapped> module, const DataParallelOptions& options)
      : DataParallelModule(module, options,
                           [](const torch::nn::Module& replica) {
                             return dynamic_cast<const Wrapped*>(&replica) != nullptr;
                           }),
        module_(std::move(module)) {
    register_module("module", module_);
  }

  /// Takes and returns what the wrapped module's forward does. Tensors in the arguments (in containers too)
  /// are cut along `dim` into as many parts as torch::chunk makes, tensors in the result put together along
  /// it; tensors without dimensions become a vector. All else in the arguments is handed to every replica, as
  /// const; all else in the result is replica 0's.
  ///
  /// Throws Error with the index and device of the replica that threw, and what it threw nested in it;
  /// ArgumentError for tensors that cannot be cut into equally many parts. One call at a time.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    using Output = decltype(module_->forward(std::declval<Own<Arguments>>()...));
    static_assert(
        nn::Findable<Output>,
        "DataParallel: tensors cannot be found in what forward() returns; give it a visit_tensors() or "
        "specialize lockstep::TensorVisitor");
    if (runs_by_itself()) return Output(module_->forward(std::forward<Arguments>(arguments)...));
    Tensors inputs;
    (collect(arguments, inputs), ...);
    std::vector<std::optional<Output>> outputs(replica_count());
    const auto gathered =
        run(inputs, sizeof...(Arguments), [&](std::size_t i, torch::nn::Module& replica, Tensors parts) {
          std::size_t next = 0;
          std::tuple<Own<Arguments>...> own{part_of<Arguments>(arguments, parts, next)...};
          std::apply(
              [&](auto&... each) {
                outputs[i].emplace(
                    dynamic_cast<Wrapped&>(replica).forward(std::forward<Own<Arguments>>(each)...));
              },
              own);
          Tensors found;
          visit_tensors(*outputs[i], [&](at::Tensor& tensor) { found.push_back(tensor); });
          return found;
        });
    std::size_t next = 0;
    visit_tensors(*outputs[0], [&](at::Tensor& tensor) { tensor = gathered[next++]; });
    return std::move(*outputs[0]);
  }

  /// The wrapped module. PyTorch: `.module`.
  const std::shared_ptr<Wrapped>& module() const { return module_; }

 private:
  // What a replica gets of an argument: a copy with its part of the tensors, or the argument itself.
  template <typename Argument>
  using Own = std::conditional_t<nn::Scattered<std::remove_cvref_t<Argument>>, std::remove_cvref_t<Argument>,
                                 const std::remove_cvref_t<Argument>&>;

  template <typename Argument>
  static void collect(const Argument& argument, Tensors& inputs) {
    if constexpr (nn::Scattered<Argument>) {
      auto copy = argument;
      visit_tensors(copy, [&](at::Tensor& tensor) { inputs.push_back(tensor); });
    }
  }

  template <typename Argument>
  static Own<Argument> part_of(const std::remove_cvref_t<Argument>& argument, const Tensors& parts,
                               std::size_t& next) {
    if constexpr (nn::Scattered<std::remove_cvref_t<Argument>>) {
      auto copy = argument;
      visit_tensors(copy, [&](at::Tensor& tensor) { tensor = parts[next++]; });
      return copy;
    } else {
      return argument;
    }
  }

  std::shared_ptr<Wrapped> module_;
};

/// Runs one module on several devices of this process, one thread each: cuts the batch into parts, runs a
/// replica of the module on each at the same time, and puts the outputs together; backward runs at the same
/// time too, and the gradients, summed over the replicas in their order, land in the module's own parameters.
/// PyTorch: `torch.nn.DataParallel`.
///
///     lockstep::DataParallel model(net, {.device_ids = {at::kCPU, at::kCPU}});
///     auto loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
///
/// Replicas see the parameters, options and mode that the module has at each forward. Those on its own device
/// share its parameters' memory, so parameters must not change between forward and backward. Buffers are the
/// first replica's: what it changes in place, e.g. running statistics, stays; changes of the others, and of
/// anything that is no parameter or buffer, are lost. Random numbers of replicas on the CPU are drawn from
/// generators of their own, which a number drawn from the default generator seeds at each forward.
///
/// `Module` is a TORCH_MODULE holder or a shared_ptr of a module; it is deduced. A value like every module
/// holder. Throws ArgumentError where the module cannot be replicated or has parameters on other devices, and
/// for SyncBatchNorm, which works between ranks. For several processes, or several steps at once, use
/// DistributedDataParallel, which is faster.
template <typename Module>
class DataParallel : public torch::nn::ModuleHolder<DataParallelImpl<typename nn::WrappedBy<Module>::type>> {
  using Impl = DataParallelImpl<typename nn::WrappedBy<Module>::type>;

 public:
  explicit DataParallel(const Module& module, const DataParallelOptions& options = {})
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(nn::WrappedBy<Module>::pointer(module), options)) {}
};

}  // namespace lockstep
