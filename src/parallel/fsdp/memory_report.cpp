// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <mutex>
#include <ostream>
#include <string>
#include <unordered_set>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <lockstep/fsdp/memory_report.h>
#include <lockstep/optim/distributed_states.h>

#include "base/host.h"
#include "base/text.h"
#include "fsdp/memory_table.h"
#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"
#include "optim/optimizer_states.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using fsdp::MemoryCount;
using fsdp::Storages;

// The memory that a thread's tensors have allocated and not freed.
class LiveAllocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* start, std::int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      live_[start] = bytes;
    } else {
      live_.erase(start);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  // The sum without `others`.
  std::int64_t bytes_without(const Storages& others) const {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [start, bytes] : live_)
      if (!others.all().contains(start)) sum += bytes;
    return sum;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::int64_t> live_;
};

void add_tensors(const Value& value, Storages& all) {
  if (const auto* const tensor = value.get_if<at::Tensor>()) return all.add(*tensor);
  if (const auto* const list = value.get_if<List>()) {
    for (const auto& each : list->items) add_tensors(each, all);
  } else if (const auto* const dict = value.get_if<Dict>()) {
    // Counts of steps are numbers, which state dicts have as tensors.
    for (const auto& [key, each] : *dict)
      if (!(key.is<std::string>() && key.as_string() == "step")) add_tensors(each, all);
  }
}

// A parameter that fully_shard() did not take.
void count_whole(const at::Tensor& parameter, const optim::DistributedStates* distributed, MemoryCount& all) {
  const auto sharing = distributed != nullptr ? distributed->sharing_of(parameter) : std::nullopt;
  if (!sharing) {
    all.parameters.add(parameter);
  } else {
    const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
    all.shared += bytes / sharing->ranks;
    if (sharing->is_owner) all.owned += bytes;
  }
  all.gradients.add(parameter.grad());
}

MemoryCount count_module(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  const auto* const distributed = dynamic_cast<const optim::DistributedStates*>(&optimizer);
  MemoryCount all;
  std::unordered_set<const fsdp::ParameterGroup*> seen;
  std::unordered_set<const c10::TensorImpl*> counted;
  for (const auto& parameter : module.parameters()) {
    if (!parameter.defined()) continue;
    const auto group = fsdp::group_of(parameter);
    if (group == nullptr) {
      if (counted.insert(parameter.unsafeGetTensorImpl()).second) count_whole(parameter, distributed, all);
    } else if (seen.insert(group.get()).second) {
      const std::lock_guard lock(group->tree()->mutex);
      group->count_memory(all);
    }
  }
  for (const auto& buffer : module.buffers()) all.parameters.add(buffer);
  return all;
}

struct OfRank {
  MemoryBytes bytes;         // shared memory in equal parts
  std::int64_t counted = 0;  // of the parameters, on the host
};

OfRank count_rank(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                  const std::function<at::Tensor()>& forward) {
  const auto allocations = std::make_shared<LiveAllocations>();
  at::Tensor loss;
  if (forward) {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, allocations);
    loss = forward();
  }
  const auto own = count_module(module, optimizer);
  Storages states;
  add_tensors(optim::states_of_rank(optimizer).at("state"), states);
  OfRank rank{.bytes = {.parameters = own.parameters.bytes() + own.shared,
                        .gradients = own.gradients.bytes(),
                        .optimizer_states = states.bytes(),
                        .gathered = own.gathered.bytes() + own.gathered_on_host},
              .counted = own.parameters.bytes() + own.owned};
  if (forward) rank.bytes.activations = allocations->bytes_without(own.gathered);
  return rank;
}

constexpr std::array kFields{&MemoryBytes::parameters, &MemoryBytes::gradients,
                             &MemoryBytes::optimizer_states, &MemoryBytes::gathered,
                             &MemoryBytes::activations};

// A rank's host, and what counts there.
std::string to_text(const OfRank& rank) {
  auto text = fmt::format("{}\n{}", memory_identity(), rank.counted);
  for (const auto field : kFields) text += fmt::format("\n{}", rank.bytes.*field);
  return text;
}

void add_rank(const std::string& text, const std::string& host, MemoryReport& report) {
  const auto lines = split(text, '\n');
  if (lines.at(0) != host) return;
  const auto number = [&](std::size_t line) {
    return parse_number<std::int64_t>(lines.at(line)).value_or(0);
  };
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    const bool shares = kFields[i] == &MemoryBytes::parameters;
    report.host.*kFields[i] += number(shares ? 1 : i + 2);
  }
  ++report.ranks;
}

}  // namespace

std::int64_t MemoryBytes::total() const {
  std::int64_t sum = 0;
  for (const auto field : kFields) sum += this->*field;
  return sum;
}

MemoryReport memory_report(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                           const MemoryReportOptions& options) {
  const auto own = count_rank(module, optimizer, options.forward);
  MemoryReport report{.rank = own.bytes, .host = {}, .ranks = 0};
  const auto group = runtime::group_or_default(std::nullopt, "memory_report()");
  const auto text = to_text(own);
  const auto ranks = group ? group->all_gather_object(text) : std::vector{text};
  const auto host = memory_identity();
  for (const auto& each : ranks) add_rank(each, host, report);
  return report;
}

std::ostream& operator<<(std::ostream& stream, const MemoryReport& report) {
  return stream << fsdp::memory_table(report.rank, report.host, report.ranks);
}

}  // namespace lockstep
