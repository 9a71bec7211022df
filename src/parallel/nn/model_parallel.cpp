// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>

#include <lockstep/nn/model_parallel.h>

#include "base/caller_place.h"
#include "intercept/storage_guard.h"
#include "modules/named_tensors.h"

namespace lockstep {
namespace {

using at::Tensor;

// A tensor without dimensions may be on the CPU, and a copy between devices is what copy_() is for.
bool may_differ(const Tensor& tensor) { return !tensor.defined() || (tensor.dim() == 0 && tensor.is_cpu()); }

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (const Tensor& tensor = value.toTensor(); !may_differ(tensor)) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) for_each_tensor(each, visit);
  }
}

c10::IValue moved(const c10::IValue& value, c10::Device device) {
  if (value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    return may_differ(tensor) || tensor.device() == device ? value : c10::IValue(tensor.to(device));
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(moved(tensor, device).toTensor());
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<Tensor>> list;
  for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
    list.push_back(tensor ? std::optional(moved(*tensor, device).toTensor()) : std::nullopt);
  return list;
}

struct Written {
  std::optional<c10::Device> device = std::nullopt;
  bool is_on_several = false;
};

// Where the tensors are that the operator changes.
Written written_tensors(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  Written written;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor(arguments[i], [&](const Tensor& tensor) {
      if (!written.device) written.device = tensor.device();
      if (tensor.device() != *written.device) written.is_on_several = true;
    });
  }
  return written;
}

void place(torch::nn::Module& module, const std::string& name, const DeviceOfModule& device_of) {
  if (const auto device = device_of(name, module)) module.to(*device);
  for (const auto& child : module.named_children())
    place(*child.value(), name.empty() ? child.key() : name + "." + child.key(), device_of);
}

}  // namespace

class ModelParallel::Scope::State final : public intercept::OperatorGuard {
 public:
  explicit State(const torch::nn::Module& module) : scope_(*this) {
    for (const auto& tensors : {module.parameters(), module.buffers()})
      for (const auto& tensor : tensors) placed_.insert(tensor.storage().unsafeGetStorageImpl());
  }

  bool run(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const auto count = op.schema().arguments().size();
    const auto arguments = torch::jit::last(stack, count);
    std::optional<c10::Device> first, of_module;
    bool differ = false;
    for (const auto& value : arguments) {
      for_each_tensor(value, [&](const Tensor& tensor) {
        if (!first) first = tensor.device();
        differ = differ || tensor.device() != *first;
        if (!of_module && is_of_module(tensor)) of_module = tensor.device();
      });
    }
    if (of_module) last_ = of_module;
    if (!differ || op.schema().name() == "aten::copy_") return false;
    const auto written = written_tensors(op.schema(), arguments);
    const auto target = written.device ? written.device : of_module ? of_module : last_;
    // A tensor that the operator changes stays, and operators of lists may take several devices.
    if (!target || written.is_on_several) return false;
    const intercept::WithoutGuards plain(intercept::WithoutGuards::Kinds::operators);
    for (auto i = stack.size() - count; i < stack.size(); ++i) stack[i] = moved(stack[i], *target);
    op.callBoxed(stack);
    return true;
  }

 private:
  bool is_of_module(const Tensor& tensor) const {
    return tensor.has_storage() && placed_.contains(tensor.storage().unsafeGetStorageImpl());
  }

  std::unordered_set<const c10::StorageImpl*> placed_;
  std::optional<c10::Device> last_;
  intercept::OperatorScope scope_;
};

ModelParallel::Scope::Scope(std::unique_ptr<State> state) : state_(std::move(state)) {}
ModelParallel::Scope::Scope(Scope&&) noexcept = default;
ModelParallel::Scope::~Scope() = default;

ModelParallel::ModelParallel(ModuleRef module, const DeviceMap& device_map, std::source_location where)
    : module_(module) {
  const CallerPlace place(where);
  std::vector<std::pair<torch::nn::Module*, c10::Device>> moves;
  for (const auto& [pattern, device] : device_map) {
    for (const auto& named : modules::matching_modules(module, pattern, "ModelParallel", where))
      moves.emplace_back(named.module, device);
  }
  for (const auto& [layer, device] : moves) layer->to(device);
}

ModelParallel::ModelParallel(ModuleRef module, const DeviceOfModule& device_of) : module_(module) {
  place(module, "", device_of);
}

ModelParallel::Scope ModelParallel::follow() const { return Scope(std::make_unique<Scope::State>(module_)); }

}  // namespace lockstep
