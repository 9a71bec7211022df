// SPDX-License-Identifier: BSD-3-Clause
#include "devices_command.h"

#include <chrono>
#include <cmath>
#include <iostream>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "doctor/devices.h"
#include "doctor/table.h"

namespace lockstep::cli {
namespace {

constexpr double kDefaultWatch = 2;
constexpr double kShortestWatch = 0.1;
constexpr double kLongestWatch = 24 * 3600;
constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";

// While it exists, Ctrl-C and SIGTERM end waits instead of the process.
class Interruption {
 public:
  Interruption() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGINT);
    ::sigaddset(&signals_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~Interruption() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // Whether a signal came within `seconds`.
  bool within(double seconds) const {
    const double whole = std::floor(seconds);
    const timespec time{.tv_sec = static_cast<time_t>(whole),
                        .tv_nsec = static_cast<long>((seconds - whole) * 1e9)};
    return ::sigtimedwait(&signals_, nullptr, &time) > 0;
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

double checked_seconds(double seconds) {
  if (seconds >= kShortestWatch && seconds <= kLongestWatch) return seconds;
  throw ArgumentError(
      fmt::format("--watch={}: the seconds must be in {} .. {}", seconds, kShortestWatch, kLongestWatch));
}

// With --watch, each JSON document is one line.
std::string snapshot(bool json, bool watching) {
  const auto devices = doctor::read_devices();
  if (json) return doctor::devices_json(devices).dump(watching ? -1 : 2) + '\n';
  return doctor::devices_text(devices, doctor::terminal_width());
}

int watch(bool json, double seconds) {
  const bool redraws = !json && ::isatty(STDOUT_FILENO) != 0;
  const Interruption interruption;
  ::signal(SIGPIPE, SIG_IGN);  // without a reader the loop ends
  for (bool first = true; std::cout.good(); first = false) {
    const auto text = snapshot(json, /*watching=*/true);
    if (!first && !json && !redraws) std::cout << '\n';
    std::cout << (redraws ? kHomeAndClear : "") << text << std::flush;
    if (interruption.within(seconds)) break;
  }
  return 0;
}

}  // namespace

DevicesCommand::DevicesCommand(CLI::App& app)
    : command_(app.add_subcommand("devices", "Show the cores, memory, NUMA nodes and GPUs of this host")) {
  command_->add_flag("--json", json_, "Print JSON; with --watch one line per update");
  command_->add_option("--watch", watch_, "Update every SECONDS (default 2) until Ctrl-C")
      ->type_name("SECONDS")
      ->expected(0, 1)
      ->default_str(fmt::format("{}", kDefaultWatch));
}

int DevicesCommand::run() const {
  if (watch_) return watch(json_, checked_seconds(*watch_));
  std::cout << snapshot(json_, /*watching=*/false) << std::flush;
  return 0;
}

}  // namespace lockstep::cli
