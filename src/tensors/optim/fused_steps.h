// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/serialize/archive.h>

#include <lockstep/optim/fused.h>

#include "base/throw_error.h"

namespace lockstep::optim {

// Identifies a parameter in messages: "FusedAdam: parameter 3 of group 0, Float[10,5] on cpu,".
struct ParameterName {
  const char* optimizer;
  std::size_t group;
  std::size_t index;
  const at::Tensor& parameter;
  std::string text() const;
};

// Throws ArgumentError unless the kernels support the parameter: floating-point and dense in memory.
void check_parameter(const ParameterName& name);

// Returns `tensor` or a copy in the memory layout of the parameter. Throws ArgumentError for a sparse tensor,
// or another shape, dtype or device. `what`: such as "gradient".
at::Tensor laid_out(const at::Tensor& tensor, const ParameterName& name, const char* what);

// The tensors of the kernel calls, one call per device and dtype. Lists: a struct of vectors.
template <typename Lists>
class CallsOf {
 public:
  Lists& at(const at::Tensor& parameter, bool first = false) {
    for (auto& call : calls_) {
      if (call.device == parameter.device() && call.dtype == parameter.scalar_type() && call.first == first) {
        return call.lists;
      }
    }
    return calls_.emplace_back(Call{parameter.device(), parameter.scalar_type(), first, {}}).lists;
  }

  struct Call {
    c10::Device device;
    at::ScalarType dtype;
    bool first;  // whether the step is the first of these parameters, where that makes a difference
    Lists lists;
  };
  std::vector<Call>& all() { return calls_; }

 private:
  std::vector<Call> calls_;
};

// Gradients in the layout that the kernels need. copy_back() makes their unscaling visible in the parameters'
// own.
class GradientList {
 public:
  void add(const ParameterName& name);
  at::TensorList list() const { return list_; }
  // After the kernel has divided them.
  void copy_back() const;

 private:
  std::vector<at::Tensor> list_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;  // the parameter's own, the one in the list
};

// `tensor` on that device, or nullopt if undefined.
std::optional<at::Tensor> on_device(const at::Tensor& tensor, c10::Device device);
// Like on_device(), but a learning rate on the CPU stays there: GPU kernels read it directly.
std::optional<at::Tensor> rate_on(const at::Tensor& rate, c10::Device device);

// What differs between fused optimizers: `Base`, LibTorch's options; `State` of a parameter; `name`;
// check(options); and prepare(optimizer, group, index, options), which implements prepare_group().
template <typename Options>
struct FusedTraits;

// NaN fails, too.
inline void check_at_least_zero(double value, const char* name, const char* optimizer) {
  if (!(value >= 0)) throw_error<ArgumentError>("{}: {} must be 0 or more, not {}", optimizer, name, value);
}

template <typename Options>
FusedOptimizerOf<Options>::FusedOptimizerOf(
    const std::vector<torch::optim::OptimizerParamGroup>& param_groups, const Options& defaults)
    : FusedOptimizer(std::make_unique<Options>(defaults)) {
  begin(param_groups);
}

// Not with the values as options of the group: LibTorch replaces those that equal its own defaults.
template <typename Options>
void FusedOptimizerOf<Options>::add_group(const Group& group) {
  add_param_group(torch::optim::OptimizerParamGroup(group.params));
  auto& options = dynamic_cast<Options&>(param_groups().back().options());
  options.set(group);
  check_values(options);
}

template <typename Options>
void FusedOptimizerOf<Options>::save(torch::serialize::OutputArchive& archive) const {
  check_groups();
  torch::optim::serialize<typename FusedTraits<Options>::State, Options>(archive, *this);
}

template <typename Options>
void FusedOptimizerOf<Options>::load(torch::serialize::InputArchive& archive) {
  load_with([&] { torch::optim::serialize<typename FusedTraits<Options>::State, Options>(archive, *this); });
}

template <typename Options>
std::unique_ptr<torch::optim::OptimizerOptions> FusedOptimizerOf<Options>::own_options(
    const torch::optim::OptimizerOptions& given) const {
  using Base = typename FusedTraits<Options>::Base;
  if (const auto* own = dynamic_cast<const Options*>(&given)) return std::make_unique<Options>(*own);
  if (const auto* base = dynamic_cast<const Base*>(&given)) return std::make_unique<Options>(*base);
  throw_error<ArgumentError>("{}: a group has the options of another kind of optimizer; give it {}Options",
                             name(), name());
}

template <typename Options>
void FusedOptimizerOf<Options>::check_values(const torch::optim::OptimizerOptions& options) const {
  FusedTraits<Options>::check(dynamic_cast<const Options&>(options));
}

template <typename Options>
const char* FusedOptimizerOf<Options>::name() const noexcept {
  return FusedTraits<Options>::name;
}

template <typename Options>
std::function<void()> FusedOptimizerOf<Options>::prepare_group(const torch::optim::OptimizerParamGroup& group,
                                                               std::size_t index) {
  return FusedTraits<Options>::prepare(*this, group, index, dynamic_cast<const Options&>(group.options()));
}

}  // namespace lockstep::optim
