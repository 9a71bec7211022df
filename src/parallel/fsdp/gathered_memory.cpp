// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "comm/mapped_memory.h"
#include "fsdp/block_layout.h"
#include "fsdp/parameter_memory.h"

namespace lockstep::fsdp {
namespace {

// For a rank's rows of parameters with `type`.
at::Tensor memory_for_shards(std::int64_t numel, const at::TensorOptions& type, const GroupOptions& options) {
  const auto& policy = options.offload_policy;
  if (!policy || type.device().is_cpu()) return comm::memory_for_calls(options.shard_group, numel, type);
  return at::empty({numel}, type.device(at::kCPU).pinned_memory(policy->pin_memory));
}

class GatheredMemory final : public ParameterMemory {
 public:
  GatheredMemory(std::vector<ShardedParameter>& parameters, const std::shared_ptr<ParameterGroup>& owner,
                 const GroupOptions& options)
      : parameters_(parameters),
        group_(options.shard_group),
        device_(parameters.front().lock_whole().device()),
        dtype_(options.mp_policy.param_dtype),
        where_(options.where) {
    const auto type = parameters.front().lock_whole().options().requires_grad(false);
    const auto& last = parameters.back();
    const auto numel = last.offset + last.padded_shard_numel();
    shards_ = memory_for_shards(numel, type, options).zero_();
    for (auto& parameter : parameters_) {
      const auto rank = group_.rank();
      const auto flat = shards_.narrow(0, parameter.offset, parameter.padded_shard_numel());
      parameter.shard = make_shard(parameter, rank, flat);
      if (const auto own = take_rows(parameter, rank); own.defined()) parameter.shard.detach().copy_(own);
      guard_parameter(parameter, owner, dtype_);
    }
  }

  void prefetch() override {
    if (work_) return;
    in_lane_ = hosts_ != nullptr && !kept_;
    auto [ranks, input] = kept_ ? *std::exchange(kept_, std::nullopt) : own_rows();
    input_ = std::move(input);
    output_ = at::empty({ranks.size() * input_.numel()}, input_.options());
    launched_ = CallTimes::Clock::now();
    work_ = ranks.all_gather_into_tensor_async(output_, input_, where_);
  }

  void drop_prefetch() override {
    if (work_) finish();
  }

  void make_whole() override {
    prefetch();
    const auto flat = finish();
    is_on_host_ = in_lane_;
    if (in_lane_) return share_on_host(flat.view({hosts_->lane.size(), -1}));
    for (const auto& parameter : parameters_) {
      const auto memory = at::empty(parameter.sizes, flat.options());
      unpack(flat.view({group_.size(), -1}), parameter, memory);
      set_memory(parameter, memory);
    }
  }

  void release() override {
    for (const auto& parameter : parameters_) set_memory(parameter, {});
  }

  // The parts of `ranks` in their order are the flat layout.
  void keep_part(const ProcessGroup& ranks) override {
    const auto rows = group_.size() / ranks.size();
    const auto type = shards_.options().device(device_).dtype(dtype_.value_or(shards_.scalar_type()));
    const auto part = at::empty({rows, shards_.numel()}, type);
    for (const auto& parameter : parameters_) {
      const auto whole = memory_of(parameter);
      if (whole.defined()) pack(whole, parameter, part, parameter.offset, ranks.rank() * rows);
    }
    kept_ = Part{ranks, part};
  }

  void forget_part() override { kept_.reset(); }

  std::optional<CallTimes> take_gathering() override { return std::exchange(gathering_, std::nullopt); }

  std::vector<at::Tensor> gathered() const override {
    std::vector<at::Tensor> all{output_};
    if (input_.defined() && !input_.is_alias_of(shards_)) all.push_back(input_);
    if (kept_) all.push_back(kept_->rows);
    if (!is_on_host_)
      for (const auto& parameter : parameters_) all.push_back(memory_of(parameter));
    return all;
  }

  Sharing sharing() const override {
    return is_on_host_ ? Sharing{.ranks = hosts_->host.size(), .counts = hosts_->host.rank() == 0}
                       : Sharing{};
  }

  // Not while a gathering over other groups is under way.
  void gather_on_hosts(std::shared_ptr<const HostSplit> hosts) override {
    if (!work_) hosts_ = std::move(hosts);
  }

 private:
  // What a rank of a group contributes to a gathering.
  struct Part {
    ProcessGroup ranks;
    at::Tensor rows;
  };

  // Offloaded shards change after the gradients of a backward have been copied, so after this copy is
  // complete.
  Part own_rows() const {
    const auto rows = shards_.to(shards_.options().device(device_), /*non_blocking=*/true);
    return {in_lane_ ? hosts_->lane : group_, dtype_ ? rows.to(*dtype_) : rows};
  }

  // The lanes of a host have different rows, and each rank copies those of its lane. `flat`: [hosts, elements
  // of a rank].
  void share_on_host(const at::Tensor& flat) {
    const BlockLayout layout(parameters_, dtype_);
    const auto block = comm::map_on_all_ranks(hosts_->host, {0}, layout.bytes(), where_).front();
    std::vector<at::Tensor> all;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      all.push_back(layout.whole_in(block, i));
      for (std::size_t host = 0; host < hosts_->lane_ranks.size(); ++host)
        unpack_row(flat[static_cast<std::int64_t>(host)], parameters_[i], all[i], hosts_->lane_ranks[host]);
    }
    hosts_->host.barrier(where_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) set_memory(parameters_[i], all[i]);
  }

  at::Tensor finish() {
    CallTimes call{.launched = launched_, .waiting = CallTimes::Clock::now(), .done = {}};
    std::exchange(work_, std::nullopt)->wait();
    call.done = CallTimes::Clock::now();
    call.bytes = group_.size() * shards_.numel() * static_cast<std::int64_t>(output_.element_size());
    gathering_ = call;
    input_.reset();
    return std::exchange(output_, {});
  }

  std::vector<ShardedParameter>& parameters_;
  ProcessGroup group_;
  c10::Device device_;  // of the gathered parameters
  std::optional<at::ScalarType> dtype_;
  std::source_location where_;
  at::Tensor shards_;         // this rank's row of the flat layout
  std::optional<Part> kept_;  // between forward and backward
  std::shared_ptr<const HostSplit> hosts_;
  bool in_lane_ = false;     // the gathering under way is the lane's
  bool is_on_host_ = false;  // whole parameters lie in memory that the host's ranks share
  at::Tensor input_;
  at::Tensor output_;
  std::optional<Work> work_;
  CallTimes::Clock::time_point launched_;
  std::optional<CallTimes> gathering_;
};

}  // namespace

std::unique_ptr<ParameterMemory> gather_parameters(std::vector<ShardedParameter>& parameters,
                                                   const std::shared_ptr<ParameterGroup>& owner,
                                                   const GroupOptions& options) {
  return std::make_unique<GatheredMemory>(parameters, owner, options);
}

}  // namespace lockstep::fsdp
