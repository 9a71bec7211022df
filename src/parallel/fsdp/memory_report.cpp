// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/mutex.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/fsdp/memory_report.h>

#include "base/caller_place.h"
#include "base/host.h"
#include "base/shared_memory.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
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
    const MutexLock lock(mutex_);
    if (bytes > 0) {
      live_[start] = bytes;
    } else {
      live_.erase(start);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  // The sum without `others`.
  std::int64_t bytes_without(const Storages& others) const {
    const MutexLock lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [start, bytes] : live_)
      if (!others.all().contains(start)) sum += bytes;
    return sum;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<const void*, std::int64_t> live_ LOCKSTEP_GUARDED_BY(mutex_);
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
      group->tree()->locked([&](fsdp::StepCalls&) {
        group->gather().add_to(all);
        group->gradients().add_to(all);
      });
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
constexpr std::array kFieldNames{"parameters", "gradients", "optimizer states", "gathered", "activations"};

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

// A row for each category, and their sum.
std::string memory_table(const MemoryBytes& rank, const MemoryBytes& host, int ranks) {
  auto table =
      fmt::format("{:<16} {:>10} {:>10}\n", "", "rank", ranks == 1 ? "host" : fmt::format("{} ranks", ranks));
  const auto row = [&](const char* name, std::int64_t left, std::int64_t right) {
    table += fmt::format("{:<16} {:>10} {:>10}\n", name, bytes_text(left), bytes_text(right));
  };
  for (std::size_t i = 0; i < kFields.size(); ++i) row(kFieldNames[i], rank.*kFields[i], host.*kFields[i]);
  row("total", rank.total(), host.total());
  return table;
}

constexpr int kMostHosts = 4096;
constexpr std::array kForms{ShardingForm::ddp, ShardingForm::zero1, ShardingForm::gathered,
                            ShardingForm::shared, ShardingForm::zero1_shared};

void check_plan(const MemoryPlan& plan) {
  const auto require = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least)
      throw_error<ArgumentError>("estimate_memory(): {} is {}; it must be {} or more", name, value, least);
  };
  require("parameters", plan.parameters, 1);
  require("optimizer_states", plan.optimizer_states, 0);
  require("ranks_per_host", plan.ranks_per_host, 1);
  require("hosts", plan.hosts, 1);
  require("numa_nodes", plan.numa_nodes, 1);
  require("largest_group", plan.largest_group.value_or(1), 1);
  require("outermost_group", plan.outermost_group, 0);
  require("activations", plan.activations, 0);
  if (plan.form == ShardingForm::zero1_shared && plan.hosts > 1)
    throw_error<ArgumentError>("estimate_memory(): form zero1_shared is for one host, and hosts is {}",
                               plan.hosts);
}

MemoryEstimate::Choice choice_of(const MemoryPlan& plan, ShardingForm form, int hosts) {
  const bool shards = form == ShardingForm::gathered || form == ShardingForm::shared;
  const auto on_host = std::int64_t{plan.ranks_per_host};
  const auto element = static_cast<std::int64_t>(c10::elementSize(plan.dtype));
  const auto all = plan.parameters * element;
  const auto in_forward = static_cast<std::int64_t>(c10::elementSize(plan.param_dtype.value_or(plan.dtype)));
  const auto groups = 2 * plan.largest_group.value_or(plan.parameters);  // elements
  const auto ranks = form == ShardingForm::shared ? on_host : on_host * hosts;
  // Shared parameters have a copy for each NUMA node; without a param_dtype, the shards are parts of these.
  auto copies = form == ShardingForm::shared ? plan.numa_nodes * plan.parameters * in_forward : 0;
  if (form == ShardingForm::shared && !plan.param_dtype) copies -= all;

  MemoryBytes rank{.activations = plan.activations};
  rank.parameters = shards ? (all + copies) / ranks : all;
  if (form == ShardingForm::zero1_shared) rank.parameters = all / ranks;
  rank.gradients = shards ? all / ranks + groups * element : all;
  rank.optimizer_states = plan.optimizer_states * all / (form == ShardingForm::ddp ? 1 : ranks);
  if (form == ShardingForm::gathered) rank.gathered = (groups + plan.outermost_group) * in_forward;
  MemoryBytes host;
  for (const auto field : kFields) host.*field = on_host * rank.*field;
  return {.form = form, .hosts = hosts, .rank = rank, .host = host};
}

std::vector<MemoryEstimate::Choice> choices_that_fit(const MemoryPlan& plan, std::int64_t limit) {
  std::vector<MemoryEstimate::Choice> found;
  const auto add = [&](ShardingForm form, int hosts) {
    const auto choice = choice_of(plan, form, hosts);
    if (choice.host.total() <= limit) found.push_back(choice);
    return !found.empty();
  };
  for (const auto form : kForms)
    if (form != ShardingForm::zero1_shared || plan.hosts == 1) add(form, plan.hosts);
  for (int hosts = plan.hosts + 1; found.empty() && hosts <= kMostHosts; ++hosts)
    add(ShardingForm::zero1, hosts) || add(ShardingForm::gathered, hosts);
  return found;
}

std::string_view form_name(ShardingForm form) {
  constexpr std::array<std::string_view, kForms.size()> names{
      "DistributedDataParallel", "ZeroRedundancyOptimizer", "fully_shard(), gathered",
      "fully_shard(), shared", "ZeroRedundancyOptimizer, shared parameters"};
  return names.at(static_cast<std::size_t>(form));
}

std::string ranks_text(int ranks_per_host, int hosts) {
  const auto ranks = ranks_per_host * hosts;
  return fmt::format("{} rank{} on {} host{}", ranks, ranks == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
}

}  // namespace

std::int64_t MemoryBytes::total() const {
  std::int64_t sum = 0;
  for (const auto field : kFields) sum += this->*field;
  return sum;
}

MemoryReport memory_report(ConstModuleRef module, const torch::optim::Optimizer& optimizer,
                           const MemoryReportOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const auto own = count_rank(module, optimizer, options.forward);
  MemoryReport report{.rank = own.bytes, .host = {}, .ranks = 0};
  const auto group = runtime::group_or_default(std::nullopt, "memory_report()");
  const auto text = to_text(own);
  const comm::CallSite site(where, "memory of a rank");
  const auto ranks = group ? group->all_gather_object(text) : std::vector{text};
  const auto host = memory_identity();
  for (const auto& each : ranks) add_rank(each, host, report);
  return report;
}

std::ostream& operator<<(std::ostream& stream, const MemoryReport& report) {
  return stream << memory_table(report.rank, report.host, report.ranks);
}

MemoryEstimate estimate_memory(const MemoryPlan& plan) {
  check_plan(plan);
  MemoryEstimate estimate{.planned = choice_of(plan, plan.form, plan.hosts),
                          .limit = plan.limit.value_or(static_cast<std::int64_t>(available_memory())),
                          .ranks_per_host = plan.ranks_per_host};
  if (!estimate.fits()) estimate.instead = choices_that_fit(plan, estimate.limit);
  return estimate;
}

std::ostream& operator<<(std::ostream& stream, const MemoryEstimate& estimate) {
  const auto& [form, hosts, rank, host] = estimate.planned;
  stream << form_name(form) << ", " << ranks_text(estimate.ranks_per_host, hosts) << '\n'
         << memory_table(rank, host, estimate.ranks_per_host)
         << (estimate.fits() ? "fits into " : "does not fit into ") << bytes_text(estimate.limit)
         << " a host\n";
  if (estimate.fits()) return stream;
  if (estimate.instead.empty()) stream << "no other form fits: fewer parameters or activations would\n";
  for (const auto& other : estimate.instead)
    stream << "would fit: " << form_name(other.form) << ", "
           << ranks_text(estimate.ranks_per_host, other.hosts) << ": " << bytes_text(other.host.total())
           << " a host\n";
  return stream;
}

}  // namespace lockstep
