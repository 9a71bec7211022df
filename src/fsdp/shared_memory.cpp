// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "comm/mapped_memory.h"
#include "fsdp/parameter_memory.h"

namespace lockstep::fsdp {
namespace {

constexpr std::int64_t kOwner = 0;
constexpr std::int64_t kAlignment = 64;

at::Tensor map_on_all_ranks(const GroupOptions& options, std::int64_t bytes) {
  const auto& group = options.shard_group;
  const auto backend = group.backend();
  auto& mapped = dynamic_cast<comm::MappedMemory&>(*backend);
  const auto place = at::zeros({1}, at::kLong);
  if (group.rank() == kOwner) place.fill_(mapped.allocate_mapped(static_cast<std::size_t>(bytes)));
  group.broadcast(place, kOwner, options.where);
  return mapped.map(kOwner, place.item<std::int64_t>(), static_cast<std::size_t>(bytes));
}

class SharedMemory final : public ParameterMemory {
 public:
  SharedMemory(std::vector<ShardedParameter>& parameters, const std::shared_ptr<ParameterGroup>& owner,
               const GroupOptions& options)
      : parameters_(parameters), rank_(options.shard_group.rank()) {
    const auto dtype = options.mp_policy.param_dtype;
    std::vector<std::int64_t> places;
    std::int64_t bytes = 0;
    for (const auto& parameter : parameters_) {
      places.push_back(bytes);
      const auto size =
          parameter.numel() * static_cast<std::int64_t>(c10::elementSize(whole_dtype(parameter, dtype)));
      bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    }
    const auto block = map_on_all_ranks(options, bytes);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      place(parameters_[i], block, places[i], owner, dtype);
  }

  void prefetch() override {}
  void drop_prefetch() override {}

  // The caller keeps other ranks from reading and waits for their writes.
  void make_whole() override {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (rows_[i].defined()) rows_[i].copy_(parameters_[i].shard.detach());
    }
  }
  void release() override {}
  void keep_part(const ProcessGroup& /*ranks*/) override {}
  void forget_part() override {}
  bool copies() const override {
    return std::ranges::any_of(rows_, [](const auto& rows) { return rows.defined(); });
  }
  std::vector<at::Tensor> gathered() const override { return {}; }

 private:
  void place(ShardedParameter& parameter, const at::Tensor& block, std::int64_t where,
             const std::shared_ptr<ParameterGroup>& owner, std::optional<at::ScalarType> dtype) {
    const auto options = parameter.lock_whole().options().requires_grad(false);
    const auto own = take_rows(parameter, rank_);
    const auto type = whole_dtype(parameter, dtype);
    const auto memory =
        block.narrow(0, where, parameter.numel() * static_cast<std::int64_t>(c10::elementSize(type)));
    // Not block.view(type): the storages of the parameter's tensors belong to this rank alone.
    const auto whole = at::from_blob(
        memory.data_ptr(), parameter.sizes, [block](void*) {}, options.dtype(type));
    const auto rows = parameter.rows_in(whole, rank_);
    // Optimizers step contiguous tensors; rows of other dimensions lie apart in the whole parameter.
    if (type == options.dtype() && parameter.dim == 0) {
      if (own.defined()) rows.copy_(own);
      parameter.shard = make_shard(parameter, rank_, rows);
      rows_.emplace_back();
    } else {
      const auto shard = at::zeros(rows.sizes(), options);
      if (own.defined()) shard.copy_(own);
      parameter.shard = make_shard(parameter, rank_, shard);
      rows_.push_back(rows);
    }
    guard_parameter(parameter, owner, dtype);
    set_memory(parameter, whole);
  }

  std::vector<ShardedParameter>& parameters_;
  int rank_;
  std::vector<at::Tensor> rows_;  // of this rank, where they are not the shard itself
};

}  // namespace

std::unique_ptr<ParameterMemory> share_parameters(std::vector<ShardedParameter>& parameters,
                                                  const std::shared_ptr<ParameterGroup>& owner,
                                                  const GroupOptions& options) {
  return std::make_unique<SharedMemory>(parameters, owner, options);
}

}  // namespace lockstep::fsdp
