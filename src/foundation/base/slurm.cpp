// SPDX-License-Identifier: BSD-3-Clause
#include "base/slurm.h"

#include <initializer_list>

#include <fmt/format.h>

#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

using Names = std::initializer_list<const char*>;

// Above the well-known ports, below the ephemeral ones.
constexpr std::int64_t kFirstPort = 15000;
constexpr std::int64_t kPortsEach = 7500;

// Ids from here on are special: the batch script, the shell of salloc
// (LaunchParameters=use_interactive_step), ...
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

// Older versions of SLURM have the shorter names.
constexpr Names kJobId{"SLURM_JOB_ID", "SLURM_JOBID"};
constexpr Names kStepId{"SLURM_STEP_ID", "SLURM_STEPID"};

std::optional<std::string> first_of(const Env& env, Names names) {
  for (const auto* name : names) {
    if (auto value = env.get(name)) return value;
  }
  return std::nullopt;
}

// 32 bits without a sign.
std::optional<std::int64_t> id_in(const Env& env, Names names) {
  for (const auto* name : names) {
    if (!env.has(name)) continue;
    try {
      const auto id = env.get_int(name);
      if (*id >= 0) return id;
      throw_error<RendezvousError>("environment variable {}={} is negative", name, *id);
    } catch (const ArgumentError& error) {
      throw RendezvousError(error.what());
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse_without(const char* name, const char* remedy = "") {
  throw_error<RendezvousError>("SLURM's environment is incomplete: {} is missing{}", name, remedy);
}

}  // namespace

bool in_slurm_step(const Env& env) {
  if (!env.has("SLURM_PROCID")) return false;
  // The script of sbatch has SLURM_PROCID=0, but no step id.
  const auto step = id_in(env, kStepId);
  return step ? *step < kFirstSpecialStep : env.get("ENVIRONMENT") != "BATCH";
}

std::vector<std::string> slurm_step_nodes(const Env& env) {
  const auto list = first_of(env, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!list) refuse_without("SLURM_JOB_NODELIST");
  return expand_node_list(*list);
}

std::vector<int> slurm_step_tasks_per_node(const Env& env) {
  const auto list = first_of(env, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  return list ? expand_tasks_per_node(*list) : std::vector<int>();
}

std::uint16_t slurm_step_port(const Env& env, SlurmPort who) {
  const auto job = id_in(env, kJobId);
  if (!job) refuse_without("SLURM_JOB_ID", "; set MASTER_PORT");
  const auto number = *job * 7 + id_in(env, kStepId).value_or(0);
  const auto first = who == SlurmPort::ranks ? kFirstPort : kFirstPort + kPortsEach;
  return static_cast<std::uint16_t>(first + number % kPortsEach);
}

namespace {

// A list with more hosts is malformed.
constexpr std::int64_t kMostHosts = 1'000'000;

[[noreturn]] void refuse(const std::string& list, const std::string& complaint) {
  throw_error<RendezvousError>("SLURM's list \"{}\" is malformed: {}", list, complaint);
}

std::int64_t number(const std::string& text, const std::string& list) {
  const auto value = parse_number<std::int64_t>(text);
  if (!value || *value < 0) refuse(list, fmt::format("\"{}\" is not a number", text));
  return *value;
}

// At commas that stand outside of brackets.
std::vector<std::string> split_outside_brackets(const std::string& text, const std::string& list) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '[') - (c == ']');
    if (depth < 0 || depth > 1) refuse(list, "its brackets do not match");
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (depth != 0) refuse(list, "its brackets do not match");
  return parts;
}

// "01-03,07": 01, 02, 03, 07, as wide as the range's first number.
std::vector<std::string> expand_ranges(const std::string& ranges, const std::string& list) {
  std::vector<std::string> texts;
  for (const auto& range : split_outside_brackets(ranges, list)) {
    const auto dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const auto from = number(first, list);
    const auto to = number(last, list);
    if (to < from || to - from > kMostHosts)
      refuse(list, fmt::format("the range \"{}\" is not ascending", range));
    for (auto value = from; value <= to; ++value) texts.push_back(fmt::format("{:0{}}", value, first.size()));
  }
  return texts;
}

std::vector<std::string> expand_one(const std::string& pattern, const std::string& list) {
  const auto open = pattern.find('[');
  if (open == std::string::npos) return {pattern};
  const auto close = pattern.find(']', open);
  std::vector<std::string> hosts;
  const auto tails = expand_one(pattern.substr(close + 1), list);
  for (const auto& middle : expand_ranges(pattern.substr(open + 1, close - open - 1), list)) {
    for (const auto& tail : tails) hosts.push_back(pattern.substr(0, open) + middle + tail);
    if (static_cast<std::int64_t>(hosts.size()) > kMostHosts) refuse(list, "it names too many hosts");
  }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_node_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (const auto& pattern : split_outside_brackets(list, list)) {
    if (pattern.empty()) refuse(list, "it has an empty entry");
    for (auto& host : expand_one(pattern, list)) hosts.push_back(std::move(host));
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(const std::string& list) {
  std::vector<int> tasks;
  for (const auto& entry : split_outside_brackets(list, list)) {
    const auto times = entry.find("(x");
    const auto count = number(entry.substr(0, times), list);
    std::int64_t repeats = 1;
    if (times != std::string::npos) {
      if (!entry.ends_with(')')) refuse(list, "its brackets do not match");
      repeats = number(entry.substr(times + 2, entry.size() - times - 3), list);
    }
    if (count > kMostHosts || repeats > kMostHosts) refuse(list, "its numbers are too large");
    tasks.insert(tasks.end(), static_cast<std::size_t>(repeats), static_cast<int>(count));
  }
  return tasks;
}

namespace {

std::size_t step_number(const Env& env, const char* name) {
  const auto value = env.get_int(name);
  if (value && *value >= 0) return static_cast<std::size_t>(*value);
  throw_error<RendezvousError>("SLURM's environment is incomplete: {} is {}", name,
                               value ? "negative" : "missing");
}

std::size_t step_tasks(const Env& env) {
  return step_number(env, env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
}

void check_one_task_a_node(std::size_t tasks, std::size_t nodes) {
  if (tasks <= nodes) return;
  throw_error<ArgumentError>(
      "srun starts lockstep run {} times on {} node{}, and each would start all ranks of its node: use "
      "srun --nodes={} --ntasks={} --ntasks-per-node=1, and set --nproc-per-node for lockstep run",
      tasks, nodes, nodes == 1 ? "" : "s", nodes, nodes);
}

}  // namespace

std::optional<SlurmNodes> slurm_nodes(const Env& env) {
  const bool below_a_rank = env.has("RANK") && env.has("WORLD_SIZE");
  if (below_a_rank || !in_slurm_step(env)) return std::nullopt;
  const auto nodes = slurm_step_nodes(env);
  check_one_task_a_node(step_tasks(env), nodes.size());
  if (nodes.size() == 1) return std::nullopt;
  const auto node = step_number(env, "SLURM_NODEID");
  if (node >= nodes.size()) {
    throw_error<RendezvousError>("SLURM's environment contradicts itself: SLURM_NODEID={} of {} nodes", node,
                                 nodes.size());
  }
  return SlurmNodes{.nnodes = static_cast<int>(nodes.size()),
                    .node_rank = static_cast<int>(node),
                    .master_addr = nodes.front(),
                    .port = slurm_step_port(env, SlurmPort::launchers)};
}

}  // namespace lockstep
