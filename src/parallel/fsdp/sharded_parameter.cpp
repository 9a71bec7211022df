// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/sharded_parameter.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/caller_place.h"
#include "comm/mapped_memory.h"
#include "device/libtorch_versions.h"
#include "optim/optimizer_states.h"

namespace lockstep::fsdp {
namespace {

at::Tensor without_padding(const at::Tensor& part, const at::Tensor& rows) {
  return part.narrow(0, 0, rows.numel()).view(rows.sizes());
}

// The type of the module's tensor.
at::ScalarType whole_dtype(const ShardedParameter& parameter, std::optional<at::ScalarType> dtype) {
  const auto own = parameter.lock_whole().scalar_type();
  return dtype && at::isFloatingType(own) ? *dtype : own;
}

void set_shard(ShardedParameter& parameter, const at::Tensor& shard) {
  optim::note_rows(shard,
                   {parameter.full_sizes, modules::offsets_of(parameter.cuts, parameter.sizes.size())});
  parameter.shard = shard.requires_grad_(parameter.trained);
}

std::int64_t bytes_in_block(const ShardedParameter& parameter, std::optional<at::ScalarType> dtype) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(whole_dtype(parameter, dtype)));
  return comm::aligned(parameter.numel() * element);
}

}  // namespace

std::string call_text(std::source_location where) { return line_prefix(where) + "fully_shard()"; }

std::string describe(const std::vector<ShardedParameter>& parameters, const GroupOptions& options) {
  return fmt::format("the group of {} of fully_shard(){}", parameters.front().name, made_at(options.where));
}

void pack(const at::Tensor& whole, const ShardedParameter& parameter, const at::Tensor& flat,
          std::int64_t offset, int first_rank) {
  for (int row = 0; row < flat.size(0); ++row) {
    const auto part = flat.select(0, row).narrow(0, offset, parameter.padded_shard_numel());
    const auto rows = parameter.rows_in(whole, first_rank + row);
    without_padding(part, rows).copy_(rows);
    if (rows.numel() < part.numel()) part.narrow(0, rows.numel(), part.numel() - rows.numel()).zero_();
  }
}

void unpack(const at::Tensor& flat, const ShardedParameter& parameter, const at::Tensor& whole) {
  for (int rank = 0; rank < flat.size(0); ++rank) unpack_row(flat.select(0, rank), parameter, whole, rank);
}

void unpack_row(const at::Tensor& row, const ShardedParameter& parameter, const at::Tensor& whole, int rank) {
  const auto rows = parameter.rows_in(whole, rank);
  rows.copy_(without_padding(row.narrow(0, parameter.offset, parameter.padded_shard_numel()), rows));
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

void guard_parameter(const ShardedParameter& parameter, std::unique_ptr<intercept::MemoryGuard> guard,
                     std::optional<at::ScalarType> dtype) {
  const auto whole = parameter.lock_whole();
  if (const auto type = whole_dtype(parameter, dtype); type != whole.scalar_type()) {
    set_type(whole, whole.options().dtype(type));
  }
  intercept::set_guard(whole, std::move(guard));
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

void make_shard(ShardedParameter& parameter, int rank, const at::Tensor& flat) {
  // Not a view: zero_grad() and optimizers expect leaves.
  auto shard = at::empty({0}, flat.options());
  shard.set_(flat.storage(), flat.storage_offset(), parameter.shard_sizes(rank));
  if (parameter.shard.defined()) {
    parameter.shard.unsafeGetTensorImpl()->shallow_copy_from(shard.getIntrusivePtr());
    return;
  }
  set_shard(parameter, shard);
}

void make_deferred_shard(ShardedParameter& parameter, int rank,
                         std::unique_ptr<intercept::MemoryGuard> guard) {
  const auto whole = parameter.lock_whole();
  set_shard(parameter, at::empty(parameter.shard_sizes(rank), whole.options().requires_grad(false)));
  intercept::set_guard(whole, std::move(guard));
}

std::int64_t block_bytes(const std::vector<ShardedParameter>& parameters,
                         std::optional<at::ScalarType> dtype) {
  std::int64_t bytes = 0;
  for (const auto& parameter : parameters) bytes += bytes_in_block(parameter, dtype);
  return bytes;
}

std::vector<at::Tensor> wholes_in(const at::Tensor& block, const std::vector<ShardedParameter>& parameters,
                                  std::optional<at::ScalarType> dtype) {
  std::vector<at::Tensor> all;
  std::int64_t place = 0;
  for (const auto& parameter : parameters) {
    const auto options = parameter.lock_whole().options().requires_grad(false);
    all.push_back(
        comm::tensor_in(block, place, parameter.sizes, options.dtype(whole_dtype(parameter, dtype))));
    place += bytes_in_block(parameter, dtype);
  }
  return all;
}

}  // namespace lockstep::fsdp
