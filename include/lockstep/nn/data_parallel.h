// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/pimpl.h>

#include <lockstep/device/device.h>
#include <lockstep/device/pytree.h>
#include <lockstep/nn/wrapped_module.h>

namespace lockstep {

/// Options of DataParallel under PyTorch's names.
struct DataParallelOptions {
  /// The device of each replica, e.g. `{0, 1}` or `{at::kCPU, at::kCPU}`. The module must be on the first of
  /// them. `cpu` may occur several times; its replicas share the cores. Default: all CUDA devices; without
  /// any the module runs by itself, as in PyTorch.
  std::vector<DeviceId> device_ids = {};

  /// The device of the outputs. Default: device_ids[0].
  std::optional<DeviceId> output_device = std::nullopt;

  /// The dimension along which arguments are scattered and outputs gathered.
  std::int64_t dim = 0;

  /// Makes a module of the wrapped one's type and structure for each replica; its values are replaced.
  /// Default: the module's clone(), which needs modules derived from torch::nn::Cloneable.
  std::function<std::shared_ptr<torch::nn::Module>()> make_replica = {};
};

namespace nn {
class Replicas;
}

/// The functions of DataParallel that do not depend on the type of the wrapped module.
class DataParallelModule : public nn::WrapperModule {
 public:
  ~DataParallelModule() override;

  /// The devices of the replicas.
  const std::vector<c10::Device>& device_ids() const { return device_ids_; }
  /// The device on which outputs are gathered.
  c10::Device output_device() const;

 protected:
  using Tensors = std::vector<at::Tensor>;
  using IsReplica = std::function<bool(const torch::nn::Module&)>;
  // Calls replica i and returns the tensors of its result.
  using Call = std::function<Tensors(std::size_t, torch::nn::Module&)>;

  DataParallelModule(std::shared_ptr<torch::nn::Module> module, const DataParallelOptions& options,
                     const IsReplica& is_replica, std::source_location where);

  // One device: the module itself is called, with its arguments there.
  bool runs_by_itself() const { return device_ids_.size() <= 1; }
  bool moves_tensors() const;
  at::Tensor to_device(const at::Tensor& tensor) const;
  at::Tensor to_output_device(const at::Tensor& tensor) const { return tensor.to(output_device()); }

  // [i]: replica i's parts of the inputs. `arguments`: the number of arguments, with or without tensors.
  std::vector<Tensors> scatter(const Tensors& inputs, std::size_t arguments);
  // Views instead of leaves, which forward() could not change in place.
  static Tensors as_arguments(const Tensors& parts);
  // Runs a replica for each of the parts and returns the gathered outputs.
  Tensors run(const Tensors& inputs, std::vector<Tensors> parts, const Call& call);

  static bool is_same(const Tensors& a, const Tensors& b);
  // Throw ArgumentError for values whose tensors cannot be replaced for each replica.
  static void check_placed(const Tensors& found, const Tensors& expected, const char* what);
  [[noreturn]] static void refuse_shared();

 private:
  DataParallelOptions options_;
  std::vector<c10::Device> device_ids_;
  std::shared_ptr<torch::nn::Module> original_;
  std::shared_ptr<nn::Replicas> replicas_;  // shared with the graph
};

template <typename Wrapped>
class DataParallelImpl : public DataParallelModule {
 public:
  DataParallelImpl(std::shared_ptr<Wrapped> module, const DataParallelOptions& options,
                   std::source_location where)
      : DataParallelModule(
            module, options,
            [](const torch::nn::Module& replica) {
              return dynamic_cast<const Wrapped*>(&replica) != nullptr;
            },
            where),
        module_(std::move(module)) {
    register_module("module", module_);
  }

  /// Calls the wrapped module's forward on the replicas, with its argument and return types. Tensors in the
  /// arguments, also in containers, are scattered along `dim` as torch::chunk does; tensors in the result are
  /// gathered along it, and those without dimensions become a vector. Every replica gets the other arguments
  /// as const. The rest of the result is that of replica 0. Undefined tensors stay undefined.
  ///
  /// Throws Error with the index and device of the replica that threw, and its exception nested;
  /// ArgumentError for tensors that do not scatter into equally many parts or that copies of an argument
  /// share (behind a shared_ptr). One call at a time.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    using Output = std::remove_cvref_t<decltype(module_->forward(std::declval<Own<Arguments>>()...))>;
    static_assert(
        PyTree<Output>,
        "DataParallel: tensors cannot be found in what forward() returns; give it a visit_tensors() or "
        "specialize lockstep::TensorVisitor");
    if (runs_by_itself()) return run_module<Output>(std::forward<Arguments>(arguments)...);
    Tensors inputs;
    (collect_scattered<Arguments>(arguments, inputs), ...);
    auto parts = scatter(inputs, sizeof...(Arguments));
    std::vector<std::tuple<Own<Arguments>...>> own;
    own.reserve(parts.size());
    for (const auto& each : parts)
      own.push_back(own_of<Arguments...>(inputs, as_arguments(each), arguments...));
    std::vector<std::optional<Output>> outputs(parts.size());
    const auto gathered = run(inputs, std::move(parts), [&](std::size_t i, torch::nn::Module& replica) {
      std::apply(
          [&](auto&... each) {
            outputs[i].emplace(
                dynamic_cast<Wrapped&>(replica).forward(std::forward<Own<Arguments>>(each)...));
          },
          own[i]);
      Tensors found;
      collect(*outputs[i], found);
      return found;
    });
    std::size_t next = 0;
    replace(*outputs[0], [&](const at::Tensor&) { return gathered[next++]; });
    Tensors placed;
    collect(*outputs[0], placed);
    check_placed(placed, gathered, "what forward() returned");
    return std::move(*outputs[0]);
  }

  /// The wrapped module. PyTorch: `.module`.
  const std::shared_ptr<Wrapped>& module() const { return module_; }

 private:
  // A replica's form of an argument: a copy with its part of the tensors, or the argument itself.
  template <typename Argument>
  using Own = std::conditional_t<MapsTensors<std::remove_cvref_t<Argument>>, std::remove_cvref_t<Argument>,
                                 const std::remove_cvref_t<Argument>&>;

  template <typename Value>
  static void collect(const Value& value, Tensors& found) {
    if constexpr (PyTree<Value> && !NonTensorLeaf<Value>) {
      // Visitors take non-const values; this one changes nothing.
      visit_tensors(const_cast<Value&>(value), [&](at::Tensor& tensor) {  // NOLINT
        if (tensor.defined()) found.push_back(tensor);
      });
    }
  }

  template <typename Value, typename Change>
  static void replace(Value& value, const Change& change) {
    visit_tensors(value, [&](at::Tensor& tensor) {
      if (tensor.defined()) tensor = change(tensor);
    });
  }

  // Copies of the arguments in which `parts` replace `inputs`.
  template <typename... Arguments>
  static std::tuple<Own<Arguments>...> own_of(const Tensors& inputs, const Tensors& parts,
                                              const std::remove_cvref_t<Arguments>&... arguments) {
    std::size_t next = 0;
    const auto change = [&](const at::Tensor&) { return parts[next++]; };
    std::tuple<Own<Arguments>...> own{map_tensors(arguments, change)...};
    Tensors placed;
    std::apply([&](const auto&... each) { (collect_scattered<Arguments>(each, placed), ...); }, own);
    check_placed(placed, parts, "the arguments");
    Tensors left;
    (collect_scattered<Arguments>(arguments, left), ...);
    if (!is_same(left, inputs)) {
      std::size_t position = 0;
      (restore<Arguments>(arguments, inputs, position), ...);
      refuse_shared();
    }
    return own;
  }

  template <typename Argument>
  static void collect_scattered(const std::remove_cvref_t<Argument>& argument, Tensors& found) {
    if constexpr (MapsTensors<std::remove_cvref_t<Argument>>) collect(argument, found);
  }

  template <typename Argument>
  static void restore(const std::remove_cvref_t<Argument>& argument, const Tensors& inputs,
                      std::size_t& position) {
    if constexpr (MapsTensors<std::remove_cvref_t<Argument>>) {
      replace(const_cast<std::remove_cvref_t<Argument>&>(argument),  // NOLINT: as it was
              [&](const at::Tensor&) { return inputs[position++]; });
    }
  }

  template <typename Output, typename... Arguments>
  Output run_module(Arguments&&... arguments) {
    if (!moves_tensors()) return module_->forward(std::forward<Arguments>(arguments)...);
    const auto there = [this](const at::Tensor& tensor) { return to_device(tensor); };
    std::tuple<Own<Arguments>...> own{map_tensors(arguments, there)...};
    auto output = std::apply(
        [&](auto&... each) -> Output { return module_->forward(std::forward<Own<Arguments>>(each)...); },
        own);
    replace(output, [this](const at::Tensor& tensor) { return to_output_device(tensor); });
    return output;
  }

  std::shared_ptr<Wrapped> module_;
};

/// Runs one module on several devices of this process, with one thread each. Forward scatters the batch, runs
/// a replica on each part in parallel and gathers the outputs. Backward runs in parallel too and adds the
/// sums of the replicas' gradients, in the replicas' order, to the module's own parameters. PyTorch:
/// `torch.nn.DataParallel`.
///
///     lockstep::DataParallel model(net, {.device_ids = {0, 1}});
///     auto loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
///
/// Each forward updates the replicas to the module's parameters, buffers, requires_grad and mode; everything
/// else, e.g. a layer's options, stays as at construction. Replicas on the module's own device share its
/// parameters' memory, so parameters must not change between forward and backward. The first replica's
/// buffers are the module's: its changes in place, e.g. to running statistics, are kept; those of other
/// replicas are lost. Each replica on the CPU draws random numbers from its own generator, which each forward
/// seeds from the default generator.
///
/// Construct the first DataParallel of a process while no other thread runs operators, as for
/// spawn_threads().
///
/// `Module` is a TORCH_MODULE holder or a shared_ptr of a module; it is deduced. Copies refer to the same
/// module, as with every module holder. Throws ArgumentError if the module cannot be replicated, has
/// parameters on other devices, or contains SyncBatchNorm, which works between ranks. DistributedDataParallel
/// is faster, and supports several processes and hosts.
template <typename Module>
class DataParallel : public torch::nn::ModuleHolder<DataParallelImpl<typename nn::WrappedBy<Module>::type>> {
  using Impl = DataParallelImpl<typename nn::WrappedBy<Module>::type>;

 public:
  explicit DataParallel(const Module& module, const DataParallelOptions& options = {},
                        std::source_location where = std::source_location::current())
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(nn::WrappedBy<Module>::pointer(module), options, where)) {}
};

}  // namespace lockstep

// LibTorch's header of these names needs the CUDA toolkit, so a program that uses them includes it.
namespace torch::nn::parallel {}

namespace lockstep::nn {
using lockstep::DataParallel;
namespace parallel {
using namespace torch::nn::parallel;
using lockstep::DataParallel;
}  // namespace parallel
}  // namespace lockstep::nn
