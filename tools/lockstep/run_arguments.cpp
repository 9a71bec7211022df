// SPDX-License-Identifier: BSD-3-Clause
#include "run_arguments.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "launch/rank_process.h"
#include "launch/signals.h"
#include "machine/topology.h"
#include "rendezvous_arguments.h"

namespace lockstep::cli {
namespace {

using Words = std::initializer_list<const char*>;

constexpr double kMostSeconds = 24 * 3600;

std::chrono::milliseconds checked_grace(double seconds) {
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {
    throw ArgumentError(
        fmt::format("--grace-period {}: the seconds must be in 0 .. {}", seconds, kMostSeconds));
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

void check_choice(const char* option, const std::string& value, const Words& allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  throw ArgumentError(fmt::format("{} {}: use {}", option, value, fmt::join(allowed, ", ")));
}

// Options of torchrun that have no effect, or that other options replace.
void check_torchruns_own(const RunArguments& arguments) {
  // Each rank is a separate program in any case.
  check_choice("--start-method", arguments.start_method, Words{"spawn", "fork", "forkserver"});
  check_choice("--event-log-handler", arguments.event_log_handler, Words{"null"});
  check_choice("--logs-specs", arguments.logs_specs, Words{"default"});
  if (!(arguments.monitor_interval > 0 && arguments.monitor_interval <= kMostSeconds)) {
    throw ArgumentError(
        fmt::format("--monitor-interval {}: use seconds above 0", arguments.monitor_interval));
  }
  if (!arguments.numa_binding.empty()) {
    throw ArgumentError(
        fmt::format("--numa-binding {} is not supported; use --bind compact (adjacent cores) or --bind "
                    "spread (ranks distributed over "
                    "the NUMA nodes)",
                    arguments.numa_binding));
  }
}

std::string python(const Env& env) {
  if (const auto chosen = env.get("PYTHON_EXEC")) return *chosen;
  try {
    launch::find_program("python3", env);
    return "python3";
  } catch (const launch::ProgramError&) {
    return "python";
  }
}

bool needs_python(const RunArguments& arguments) {
  if (arguments.module || arguments.run_path) return true;
  return !arguments.no_python && !arguments.command.empty() && arguments.command.front().ends_with(".py");
}

void set_command(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options) {
  if (arguments.module && arguments.no_python) {
    throw ArgumentError("--module and --no-python contradict each other");
  }
  options.command = arguments.command;
  if (arguments.command.empty() || !needs_python(arguments)) return;
  std::vector<std::string> interpreter{python(env), "-u"};
  if (arguments.module) interpreter.emplace_back("-m");
  options.program_words = static_cast<int>(interpreter.size()) + 1;
  options.command.insert(options.command.begin(), interpreter.begin(), interpreter.end());
}

std::set<int> parse_ranks(const std::string& text) {
  std::set<int> ranks;
  for (auto number : split(text, ',')) {
    std::erase(number, ' ');
    const auto rank = parse_number<int>(number);
    if (!rank || *rank < 0) {
      throw ArgumentError(fmt::format("--local-ranks-filter {}: use local ranks, as in 0,2", text));
    }
    ranks.insert(*rank);
  }
  return ranks;
}

// At commas; a double comma is a comma of the text.
std::vector<std::string> split_texts(const std::string& list) {
  std::vector<std::string> texts;
  std::string text;
  const auto end_text = [&] {
    if (!text.empty()) texts.push_back(text);
    text.clear();
  };
  for (std::size_t at = 0; at < list.size(); ++at) {
    const bool doubled = list[at] == ',' && at + 1 < list.size() && list[at + 1] == ',';
    if (list[at] == ',' && !doubled) {
      end_text();
      continue;
    }
    text += list[at];
    if (doubled) ++at;
  }
  end_text();
  return texts;
}

launch::OutputOptions output_options(const RunArguments& arguments, const Env& env) {
  return {.log_dir = arguments.log_dir,
          .redirects = launch::parse_streams(arguments.redirects, "--redirects"),
          .tee = launch::parse_streams(arguments.tee, "--tee"),
          .shown = parse_ranks(arguments.local_ranks_filter),
          .duplicate_stdout_filters = split_texts(arguments.duplicate_stdout_filters),
          .duplicate_stderr_filters = split_texts(arguments.duplicate_stderr_filters),
          .prefix_template = env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
          .error_file = arguments.error_file};
}

machine::Binding parse_binding(const std::string& text) {
  check_choice("--bind", text, Words{"none", "compact", "spread"});
  if (text == "compact") return machine::Binding::compact;
  return text == "spread" ? machine::Binding::spread : machine::Binding::none;
}

}  // namespace

launch::LaunchOptions launch_options(const RunArguments& arguments, const launch::Machine& machine,
                                     const Env& env) {
  check_torchruns_own(arguments);
  launch::LaunchOptions options{.nproc_per_node = launch::worker_count(arguments.nproc_per_node, machine),
                                .local_addr = arguments.local_addr,
                                .role = arguments.role,
                                .max_restarts = arguments.max_restarts,
                                .virtual_local_rank = arguments.virtual_local_rank,
                                .pass_local_rank = arguments.pass_local_rank,
                                .stop_signals = launch::parse_signals(arguments.signals_to_handle),
                                .bind = parse_binding(arguments.bind),
                                .memory_allocator = arguments.memory_allocator,
                                .output = output_options(arguments, env),
                                .grace_period = checked_grace(arguments.grace_period)};
  if (arguments.use_env && arguments.pass_local_rank) {
    throw ArgumentError("--use-env and --pass-local-rank contradict each other");
  }
  set_command(arguments, env, options);
  set_rendezvous(arguments, env, options);
  launch::validate(options);
  return options;
}

}  // namespace lockstep::cli
