// SPDX-License-Identifier: BSD-3-Clause
#include <memory>
#include <vector>

#include <ATen/ops/empty.h>

#include <lockstep/fsdp/fully_shard.h>

#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"

namespace lockstep {
namespace {

using fsdp::group_of;

// Gives a tensor another device in place, and memory there.
void make_ordinary(const at::Tensor& tensor, c10::Device device) {
  const auto memory = at::empty(tensor.sizes(), tensor.options().device(device).requires_grad(false));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
}

// While it lives, a parameter on device meta is an ordinary tensor. Then its group has this rank's rows.
class OrdinaryParameter {
 public:
  OrdinaryParameter(const at::Tensor& parameter, c10::Device device)
      : parameter_(parameter),
        group_(group_of(parameter)),
        deferred_(parameter.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true)) {
    make_ordinary(parameter_, device);
  }
  ~OrdinaryParameter() {
    const auto values = parameter_.detach();
    parameter_.unsafeGetTensorImpl()->shallow_copy_from(deferred_);
    group_->set_initial(parameter_, values);
  }
  OrdinaryParameter(const OrdinaryParameter&) = delete;
  OrdinaryParameter& operator=(const OrdinaryParameter&) = delete;

 private:
  at::Tensor parameter_;
  std::shared_ptr<fsdp::ParameterGroup> group_;
  c10::intrusive_ptr<c10::TensorImpl> deferred_;
};

// Those that the module registers itself.
std::vector<at::Tensor> own_tensors_on_meta(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& list : {module.named_parameters(false), module.named_buffers(false)})
    for (const auto& [name, tensor] : modules::distinct(list))
      if (tensor.is_meta()) all.push_back(tensor);
  return all;
}

void initialize(torch::nn::Module& module, const ToEmptyOptions& options) {
  for (const auto& child : module.children()) initialize(*child, options);
  const auto tensors = own_tensors_on_meta(module);
  if (tensors.empty()) return;
  std::vector<std::unique_ptr<OrdinaryParameter>> parameters;
  for (const auto& tensor : tensors) {
    if (group_of(tensor) == nullptr) {
      make_ordinary(tensor, options.device);
    } else if (options.param_init_fn) {
      parameters.push_back(std::make_unique<OrdinaryParameter>(tensor, options.device));
    }
  }
  if (options.param_init_fn) options.param_init_fn(module);
}

}  // namespace

void to_empty(torch::nn::Module& module, const ToEmptyOptions& options) {
  initialize(module, options);
  for (const auto& parameter : module.parameters()) {
    const auto group = group_of(parameter);
    if (group == nullptr) continue;
    group->tree()->locked([&](fsdp::StepCalls&) { group->to_empty(options.device); });
  }
}

}  // namespace lockstep
