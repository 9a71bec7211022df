// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>

#include "top_table.h"

namespace lockstep::cli {

// A run as `lockstep top` shows it, with `hosts` the ranks of all its hosts. Takes 0.2 s.
Snapshot snapshot_of(const std::string& name, bool hosts);

// `lockstep top --once`: a run as text or JSON, with `hosts` the ranks of all its hosts. Returns 1 if a rank keeps
// others waiting, else 0.
int print_run(const std::string& name, bool json, bool hosts);

// `lockstep top`: a run on the whole terminal until it ends, which the last line says, or the user leaves.
int show_run(const std::string& name, std::chrono::milliseconds interval, bool hosts);

}  // namespace lockstep::cli
