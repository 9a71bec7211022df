// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "commands.h"
#include "doctor/devices.h"
#include "doctor/table.h"
#include "launch/guard.h"

namespace lockstep::cli {
namespace {

constexpr double kDefaultWatch = 2;
constexpr double kShortestWatch = 0.1;
constexpr double kLongestWatch = 24 * 3600;
constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";

// Whether one of `signals`, which are blocked, came within `seconds`.
bool signal_within(double seconds, const sigset_t& signals) {
  const double whole = std::floor(seconds);
  const timespec time{.tv_sec = static_cast<time_t>(whole),
                      .tv_nsec = static_cast<long>((seconds - whole) * 1e9)};
  return ::sigtimedwait(&signals, nullptr, &time) > 0;
}

double checked_seconds(double seconds) {
  if (seconds >= kShortestWatch && seconds <= kLongestWatch) return seconds;
  throw_error<ArgumentError>("--watch={}: the seconds must be in {} .. {}", seconds, kShortestWatch,
                             kLongestWatch);
}

// With --watch, each JSON document is one line.
std::string snapshot(bool json, bool watching) {
  const auto devices = doctor::read_devices();
  if (json) return doctor::devices_json(devices).dump(watching ? -1 : 2) + '\n';
  return doctor::devices_text(devices, doctor::terminal_width());
}

int watch(bool json, double seconds) {
  const bool redraws = !json && ::isatty(STDOUT_FILENO) != 0;
  // Ctrl-C and SIGTERM end the wait instead of the process.
  sigset_t signals{};
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  const launch::BlockedSignals blocked(signals);
  ::signal(SIGPIPE, SIG_IGN);  // without a reader the loop ends
  for (bool first = true; std::cout.good(); first = false) {
    const auto text = snapshot(json, /*watching=*/true);
    if (!first && !json && !redraws) std::cout << '\n';
    std::cout << (redraws ? kHomeAndClear : "") << text << std::flush;
    if (signal_within(seconds, signals)) break;
  }
  return 0;
}

}  // namespace

Command devices_command(CLI::App& app) {
  struct Options {
    bool json = false;
    std::optional<double> watch;
  };
  const auto options = std::make_shared<Options>();
  auto* devices = app.add_subcommand("devices", "Show the cores, memory, NUMA nodes and GPUs of this host");
  devices->add_flag("--json", options->json, "Print JSON; with --watch one line per update");
  devices->add_option("--watch", options->watch, "Update every SECONDS (default 2) until Ctrl-C")
      ->type_name("SECONDS")
      ->expected(0, 1)
      ->default_str(fmt::format("{}", kDefaultWatch));
  return {.app = devices, .run = [options](const auto& /*rest*/) {
            if (options->watch) return watch(options->json, checked_seconds(*options->watch));
            std::cout << snapshot(options->json, /*watching=*/false) << std::flush;
            return 0;
          }};
}

}  // namespace lockstep::cli
