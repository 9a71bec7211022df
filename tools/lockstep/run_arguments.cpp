// SPDX-License-Identifier: BSD-3-Clause
#include "run_arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/program.h>
#include <lockstep/launch/stop_signals.h>
#include <lockstep/machine/topology.h>

#include "rendezvous_arguments.h"

namespace lockstep::cli {
namespace {

using Words = std::initializer_list<const char*>;

constexpr double kMostSeconds = 24 * 3600;

std::chrono::milliseconds checked_grace(double seconds) {
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {
    throw ArgumentError(fmt::format("--grace-period {}: give seconds, from 0 to {}", seconds, kMostSeconds));
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

void check_choice(const char* option, const std::string& value, const Words& allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  throw ArgumentError(fmt::format("{} {}: give {}", option, value, fmt::join(allowed, ", ")));
}

// Options of torchrun that change nothing here, or for which there is something else.
void check_torchruns_own(const RunArguments& arguments) {
  // Every rank is a program of its own, however it is started.
  check_choice("--start-method", arguments.start_method, Words{"spawn", "fork", "forkserver"});
  check_choice("--event-log-handler", arguments.event_log_handler, Words{"null"});
  check_choice("--logs-specs", arguments.logs_specs, Words{"default"});
  if (!(arguments.monitor_interval > 0 && arguments.monitor_interval <= kMostSeconds)) {
    throw ArgumentError(
        fmt::format("--monitor-interval {}: give seconds above 0", arguments.monitor_interval));
  }
  if (!arguments.numa_binding.empty()) {
    throw ArgumentError(
        fmt::format("--numa-binding {} is not there; --bind compact keeps each rank's cores "
                    "together, --bind spread deals the ranks to the NUMA nodes",
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
    throw ArgumentError("--module and --no-python contradict each other: a module is run by Python");
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
  std::istringstream numbers(text);
  for (std::string number; std::getline(numbers, number, ',');) {
    int rank = -1;
    std::erase(number, ' ');
    const auto [stop, code] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (code != std::errc() || stop != number.data() + number.size() || rank < 0) {
      throw ArgumentError(fmt::format("--local-ranks-filter {}: give local ranks, as in 0,2", text));
    }
    ranks.insert(rank);
  }
  return ranks;
}

// At commas; a double comma is one that belongs to the text.
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
    throw ArgumentError("--use-env and --pass-local-rank contradict each other: take one");
  }
  set_command(arguments, env, options);
  set_rendezvous(arguments, env, options);
  launch::validate(options);
  return options;
}

}  // namespace lockstep::cli
