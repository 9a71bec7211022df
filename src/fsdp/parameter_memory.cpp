// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/parameter_memory.h"

#include <ATen/ops/empty.h>

#include "fsdp/parameter_group.h"
#include "optim/parameter_rows.h"

namespace lockstep::fsdp {

nn::StorageGuard::Views ParameterGuard::before_use(std::string_view op, bool writes) {
  return group_->before_use(op, writes);
}

std::shared_ptr<ParameterGroup> group_of(const at::Tensor& parameter) {
  auto* const guard = dynamic_cast<ParameterGuard*>(nn::guard_of(parameter));
  return guard == nullptr ? nullptr : guard->group();
}

at::ScalarType whole_dtype(const ShardedParameter& parameter, std::optional<at::ScalarType> dtype) {
  const auto own = parameter.lock_whole().scalar_type();
  return dtype && at::isFloatingType(own) ? *dtype : own;
}

void guard_parameter(const ShardedParameter& parameter, const std::shared_ptr<ParameterGroup>& owner,
                     std::optional<at::ScalarType> dtype) {
  auto whole = parameter.lock_whole();
  if (const auto type = whole_dtype(parameter, dtype); type != whole.scalar_type()) {
    whole.set_data(at::empty(whole.sizes(), whole.options().dtype(type).requires_grad(false)));
  }
  nn::guard_storage(whole, std::make_unique<ParameterGuard>(owner), nullptr, 0);
  set_memory(parameter, {});
}

at::Tensor memory_of(const ShardedParameter& parameter) {
  const auto whole = parameter.lock_whole();
  if (!whole.defined()) return {};
  const auto* const guard = static_cast<ParameterGuard*>(nn::guard_of(whole));
  return guard == nullptr ? at::Tensor() : guard->memory;
}

void set_memory(const ShardedParameter& parameter, const at::Tensor& memory) {
  const auto whole = parameter.lock_whole();
  if (!whole.defined()) return;
  auto* const guard = static_cast<ParameterGuard*>(nn::guard_of(whole));
  if (guard == nullptr) return;  // backward reports it
  auto* const storage = whole.storage().unsafeGetStorageImpl();
  if (memory.defined()) {
    nn::set_guarded_memory(whole, memory.data_ptr(), memory.nbytes());
    storage->clear_data_ptr_access_error_msg_();
  } else {
    nn::set_guarded_memory(whole, nullptr, 0);
    // Code that takes pointers, such as torch::save(), would take nullptr.
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "parameter " + parameter.name +
        " of fully_shard() is not gathered here; save what lockstep::get_model_state_dict() returns, and "
        "read parameters with operators");
  }
  guard->memory = memory;
}

at::Tensor make_shard(const ShardedParameter& parameter, int rank, const at::Tensor& flat) {
  // Not a view: zero_grad() and optimizers expect leaves.
  auto shard = at::empty({0}, flat.options());
  shard.set_(flat.storage(), flat.storage_offset(), parameter.shard_sizes(rank));
  optim::note_rows(shard, {.sizes = parameter.sizes, .first = parameter.first_row(rank)});
  return shard.requires_grad_(parameter.trained);
}

}  // namespace lockstep::fsdp
