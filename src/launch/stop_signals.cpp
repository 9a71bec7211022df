// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <sstream>
#include <string.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/stop_signals.h>

namespace lockstep::launch {
namespace {

// 0 when there is no such signal.
int signal_number(std::string name) {
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int number = 1; number < SIGRTMIN; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && name == known) return number;
  }
  return 0;
}

}  // namespace

std::set<int> parse_signals(const std::string& text) {
  std::set<int> signals;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    std::erase(name, ' ');
    const int number = signal_number(name);
    if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
      throw ArgumentError(
          fmt::format("signals-to-handle: \"{}\" is no signal that a program can handle", name));
    }
    signals.insert(number);
  }
  return signals;
}

}  // namespace lockstep::launch
