// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/parameter_memory.h"

#include <ATen/ops/empty.h>

#include "device/libtorch_versions.h"
#include "fsdp/parameter_group.h"
#include "optim/parameter_rows.h"

namespace lockstep::fsdp {

intercept::MemoryGuard::Views ParameterGuard::before_use(std::string_view op, bool writes) {
  return group_->before_use(op, writes);
}

std::shared_ptr<ParameterGroup> group_of(const at::Tensor& parameter) {
  auto* const guard = dynamic_cast<ParameterGuard*>(intercept::memory_guard_of(parameter));
  return guard == nullptr ? nullptr : guard->group();
}

at::ScalarType whole_dtype(const ShardedParameter& parameter, std::optional<at::ScalarType> dtype) {
  const auto own = parameter.lock_whole().scalar_type();
  return dtype && at::isFloatingType(own) ? *dtype : own;
}

at::Tensor take_rows(ShardedParameter& parameter, int rank) {
  if (parameter.initial.defined()) return std::exchange(parameter.initial, {});
  const auto whole = parameter.lock_whole().detach();
  if (whole.numel() > 0 && whole.storage().nbytes() == 0) return {};
  return parameter.rows_in(whole, rank);
}

void set_type(const at::Tensor& tensor, const at::TensorOptions& options) {
  auto operators = intercept::take_operator_guard(tensor);
  const auto other = at::empty({0}, options.requires_grad(false));
  other.unsafeGetTensorImpl()->set_sizes_contiguous(tensor.sizes());
  if (tensor.is_meta()) {  // which set_data() refuses
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  } else {
    tensor.set_data(other);
  }
  if (operators) intercept::set_guard(tensor, std::move(operators));
}

void guard_parameter(const ShardedParameter& parameter, const std::shared_ptr<ParameterGroup>& owner,
                     std::optional<at::ScalarType> dtype) {
  const auto whole = parameter.lock_whole();
  if (const auto type = whole_dtype(parameter, dtype); type != whole.scalar_type()) {
    set_type(whole, whole.options().dtype(type));
  }
  intercept::set_guard(whole, std::make_unique<ParameterGuard>(owner));
  set_memory(parameter, {});
}

at::Tensor memory_of(const ShardedParameter& parameter) {
  return intercept::guarded_memory(parameter.lock_whole());
}

void set_memory(const ShardedParameter& parameter, const at::Tensor& memory) {
  const auto whole = parameter.lock_whole();
  if (!whole.defined() || intercept::memory_guard_of(whole) == nullptr) return;  // backward reports it
  auto* const storage = whole.storage().unsafeGetStorageImpl();
  intercept::set_guarded_memory(whole, memory);
  if (memory.defined()) {
    libtorch::allow_access(*storage);
  } else {
    // Code that takes pointers, such as torch::save(), would take nullptr.
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "parameter " + parameter.name +
        " of fully_shard() is not gathered here; save what lockstep::get_model_state_dict() returns, and "
        "read parameters with operators");
  }
}

at::Tensor make_shard(const ShardedParameter& parameter, int rank, const at::Tensor& flat) {
  // Not a view: zero_grad() and optimizers expect leaves.
  auto shard = at::empty({0}, flat.options());
  shard.set_(flat.storage(), flat.storage_offset(), parameter.shard_sizes(rank));
  if (parameter.shard.defined()) {
    parameter.shard.unsafeGetTensorImpl()->shallow_copy_from(shard.getIntrusivePtr());
    return parameter.shard;
  }
  optim::note_rows(shard,
                   {parameter.full_sizes, modules::offsets_of(parameter.cuts, parameter.sizes.size())});
  return shard.requires_grad_(parameter.trained);
}

}  // namespace lockstep::fsdp
