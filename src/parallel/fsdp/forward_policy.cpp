// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/forward_policy.h"

#include <algorithm>
#include <mutex>

#include <c10/util/Type.h>

#include "base/throw_error.h"
#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"

namespace lockstep {
namespace {

at::Tensor converted(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  return dtype && tensor.is_floating_point() ? tensor.to(*dtype) : tensor;
}

}  // namespace

void fsdp::ForwardPolicy::check() const {
  if (is_used || !mp_policy.output_dtype) return;
  throw_error<Error>(
      "{}: the module has an output_dtype, which only forward() of the FSDPModule converts to; call "
      "sharded.forward(net, ...) instead of net->forward(...), or convert the output in the module's code",
      describe);
}

void FSDPModule::begin_forward(const torch::nn::Module* module) const {
  if (!forward_) throw ArgumentError("FSDPModule::forward(): the module was not given to fully_shard()");
  if (module == nullptr || module != forward_->module) {
    throw_error<ArgumentError>("{}: forward(): the first argument is another module, {}", forward_->describe,
                               module == nullptr ? "without a value" : module->name());
  }
  forward_->is_used = true;
  const auto first = std::ranges::find_if(entries_, [](const auto& each) { return each.group != nullptr; });
  if (first == entries_.end()) return;
  const auto tree = first->group->tree();
  const std::lock_guard lock(tree->mutex);
  if (tree->is_between_steps()) tree->check_module();
}

at::Tensor FSDPModule::input(const at::Tensor& tensor) const {
  const auto& policy = forward_->mp_policy;
  return policy.cast_forward_inputs ? converted(tensor, policy.param_dtype) : tensor;
}

at::Tensor FSDPModule::output(const at::Tensor& tensor) const {
  return converted(tensor, forward_->mp_policy.output_dtype);
}

void FSDPModule::refuse_output(const char* type) const {
  if (!forward_->mp_policy.output_dtype) return;
  throw_error<ArgumentError>(
      "{}: forward() returns {}, in which tensors cannot be found, as output_dtype needs it; give it a "
      "visit_tensors() or specialize lockstep::TensorVisitor",
      forward_->describe, c10::demangle(type));
}

}  // namespace lockstep
