// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <lockstep/ddp/comm_hooks.h>
#include <lockstep/runtime/default_group.h>

#include "backends/hierarchical/host_layout.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "ddp/bucket.h"
#include "ddp/option_rules.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using backends::HostLayout;
using Parameters = std::vector<GradBucket::Parameter>;
using Parts = std::vector<std::vector<int>>;

std::int64_t numel_of_row(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? 1 : tensor.numel() / tensor.size(0);
}

// The elements [begin, end) of a bucket, and the rows of its parameters that they are.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  at::Tensor of(const at::Tensor& buffer) const { return buffer.slice(0, begin, end); }
  Parameters parameters(const Parameters& whole) const {
    Parameters rows;
    for (const auto& [name, tensor, offset] : whole) {
      const auto first = std::max(begin, offset) - offset;
      const auto last = std::min(end, offset + tensor.numel()) - offset;
      if (first >= last) continue;
      const auto row = numel_of_row(tensor);
      const bool is_whole = last - first == tensor.numel();
      rows.push_back({.name = name,
                      .tensor = is_whole ? tensor : tensor.detach().slice(0, first / row, last / row),
                      .offset = offset + first - begin});
    }
    return rows;
  }
};

// Almost equal: a shard begins with a row, so that a hook sees matrices.
std::vector<Shard> shards_of(const GradBucket& bucket, int count) {
  const auto numel = bucket.buffer().numel();
  std::vector<Shard> shards(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    auto end = static_cast<std::int64_t>(i + 1) * numel / count;
    for (const auto& [name, tensor, offset] : bucket.parameters()) {
      const auto inside = end - offset;
      if (inside > 0 && inside < tensor.numel()) end -= inside % numel_of_row(tensor);
    }
    shards[i] = {.begin = i == 0 ? 0 : shards[i - 1].end, .end = end};
  }
  return shards;
}

// Each rank of the smallest host owns a shard of each bucket, with the ranks of its number on the others.
class BetweenHosts {
 public:
  BetweenHosts(CommHook hook, ProcessGroup whole)
      : BetweenHosts(std::move(hook), std::move(whole), runtime::require_run("between_hosts")) {}

  BucketWork reduce(GradBucket& bucket) const {
    check(bucket);
    const auto buffer = bucket.buffer();
    buffer.div_(static_cast<double>(layout_.size()) / layout_.hosts());  // the hook divides by the hosts
    sum_on_host(bucket, buffer);  // blocks, so that the network begins before backward ends
    const auto shards = shards_of(bucket, owners_);
    return of_hosts(bucket, shards)
        .then([buffer, shards, host = host_,
               index = static_cast<int>(bucket.index())](const at::Tensor& reduced) {
          std::vector<at::Tensor> parts;
          for (const auto& shard : shards) parts.push_back(shard.of(buffer));
          parts.resize(static_cast<std::size_t>(host.size()), buffer.slice(0, 0, 0));
          auto& own = parts[static_cast<std::size_t>(host.rank())];
          if (!reduced.is_alias_of(own)) own.copy_(reduced.reshape({-1}));
          const comm::CallSite site(ddp::kGradients, index);
          return BucketWork(host.all_gather_async(parts, own), buffer);
        });
  }

 private:
  void sum_on_host(const GradBucket& bucket, const at::Tensor& buffer) const {
    const comm::CallSite site(ddp::kGradients, static_cast<int>(bucket.index()));
    host_.all_reduce(buffer);
  }

  BetweenHosts(CommHook hook, ProcessGroup whole, runtime::Run& run)
      : hook_(std::move(hook)),
        whole_(std::move(whole)),
        layout_(run.hosts_of(whole_), whole_.rank()),
        owners_(smallest(layout_)),
        host_(run.split_group(whole_, hosts(layout_), {})),
        lane_(run.split_group(whole_, lanes(layout_, owners_), {})) {}

  static int smallest(const HostLayout& layout) {
    int ranks = layout.size();
    for (int host = 0; host < layout.hosts(); ++host) ranks = std::min(ranks, layout.size_of(host));
    return ranks;
  }
  static Parts hosts(const HostLayout& layout) {
    Parts parts;
    for (int host = 0; host < layout.hosts(); ++host) parts.push_back(layout.members(host));
    return parts;
  }
  // Ranks that own no shard are alone.
  static Parts lanes(const HostLayout& layout, int owners) {
    Parts parts;
    for (int number = 0; number < owners; ++number) parts.push_back(layout.lane(number));
    for (int rank = 0; rank < layout.size(); ++rank)
      if (layout.local_rank_of(rank) >= owners) parts.push_back({rank});
    return parts;
  }

  void check(const GradBucket& bucket) const {
    const auto& buffer = bucket.buffer();
    if (buffer.is_sparse()) {
      throw_error<ArgumentError>("between_hosts: sparse gradients are not supported; that of {} is sparse",
                                 bucket.parameters().front().name);
    }
    if (&comm::state_of(bucket.process_group()) != &comm::state_of(whole_)) {
      throw_error<ArgumentError>(
          "between_hosts: it was made for group {}, but DistributedDataParallel has {}", whole_.name(),
          bucket.process_group().name());
    }
    const auto& traits = comm::state_of(host_).info().traits.on(buffer.device().type());
    if (!traits.uneven_all_gather) {
      throw_error<ArgumentError>(
          "between_hosts: the ranks of a host use {}, which cannot gather shards of different sizes; use the "
          "backend hierarchical and gradients on the CPU",
          host_.backend_name());
    }
  }

  BucketWork of_hosts(const GradBucket& bucket, const std::vector<Shard>& shards) const {
    if (host_.rank() >= owners_) return BucketWork(bucket.buffer().slice(0, 0, 0));
    const auto& shard = shards[static_cast<std::size_t>(host_.rank())];
    GradBucket part(bucket.index(), bucket.is_last(), shard.of(bucket.buffer()),
                    shard.parameters(bucket.parameters()), lane_);
    return hook_(part);
  }

  CommHook hook_;
  ProcessGroup whole_;
  HostLayout layout_;
  int owners_;  // of shards, on each host
  ProcessGroup host_;
  ProcessGroup lane_;  // this rank, and those of its number on the other hosts
};

}  // namespace

CommHook between_hosts(CommHook hook, const std::optional<ProcessGroup>& process_group) {
  if (!hook) throw ArgumentError("between_hosts: the hook to wrap is empty");
  auto& run = runtime::require_run("between_hosts");
  auto whole = runtime::required_group(process_group, "between_hosts()");
  ddp::check_on(whole, ddp::Feature::between_hosts);
  const auto hosts = run.hosts_of(whole);
  if (std::ranges::count(hosts, hosts.front()) == whole.size()) return allreduce_hook;
  const auto state = std::make_shared<const BetweenHosts>(std::move(hook), std::move(whole));
  return [state](GradBucket& bucket) { return state->reduce(bucket); };
}

}  // namespace lockstep
