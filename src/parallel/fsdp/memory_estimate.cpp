// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <ostream>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/shared_memory.h"
#include "base/throw_error.h"
#include "fsdp/memory_table.h"

namespace lockstep {
namespace {

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
  const MemoryBytes host{.parameters = on_host * rank.parameters,
                         .gradients = on_host * rank.gradients,
                         .optimizer_states = on_host * rank.optimizer_states,
                         .gathered = on_host * rank.gathered,
                         .activations = on_host * rank.activations};
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
         << fsdp::memory_table(rank, host, estimate.ranks_per_host)
         << (estimate.fits() ? "fits into " : "does not fit into ") << fsdp::bytes_text(estimate.limit)
         << " a host\n";
  if (estimate.fits()) return stream;
  if (estimate.instead.empty()) stream << "no other form fits: fewer parameters or activations would\n";
  for (const auto& other : estimate.instead)
    stream << "would fit: " << form_name(other.form) << ", "
           << ranks_text(estimate.ranks_per_host, other.hosts) << ": " << fsdp::bytes_text(other.host.total())
           << " a host\n";
  return stream;
}

namespace fsdp {

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units.at(unit));
}

std::string memory_table(const MemoryBytes& rank, const MemoryBytes& host, int ranks) {
  auto table =
      fmt::format("{:<16} {:>10} {:>10}\n", "", "rank", ranks == 1 ? "host" : fmt::format("{} ranks", ranks));
  const auto row = [&](const char* name, std::int64_t left, std::int64_t right) {
    table += fmt::format("{:<16} {:>10} {:>10}\n", name, bytes_text(left), bytes_text(right));
  };
  row("parameters", rank.parameters, host.parameters);
  row("gradients", rank.gradients, host.gradients);
  row("optimizer states", rank.optimizer_states, host.optimizer_states);
  row("gathered", rank.gathered, host.gathered);
  row("activations", rank.activations, host.activations);
  row("total", rank.total(), host.total());
  return table;
}

}  // namespace fsdp
}  // namespace lockstep
