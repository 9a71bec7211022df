// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <set>
#include <string>

namespace lockstep::launch {

/// "SIGTERM,SIGUSR1" as numbers, for LaunchOptions::stop_signals. Throws ArgumentError naming what is no
/// signal, or none that can be handled.
std::set<int> parse_signals(const std::string& text);

}  // namespace lockstep::launch
