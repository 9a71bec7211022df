// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>

namespace lockstep::cli {

// `lockstep top --once`: a run as text or JSON. Returns 1 if a rank keeps others waiting, else 0.
int print_run(const std::string& name, bool json);

// `lockstep top`: a run on the whole terminal until it ends, which the last line says, or the user leaves.
int show_run(const std::string& name, std::chrono::milliseconds interval);

}  // namespace lockstep::cli
