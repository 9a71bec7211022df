// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <lockstep/base/log.h>
#include <lockstep/base/world.h>

// The state of the process that base keeps for all layers: what current_world() returns, and where the lines
// of log() go.

namespace lockstep {

// Called by init() and by the destructor of its context.
void set_current_world(const World& world);

// Ranks of the present world have been lost, and the others go on as `world`. What was made in the present world
// belongs to the new one: see world_since().
void shrink_current_world(const World& world);

// Called by a thread when it becomes a rank, and with nullopt when it stops being one.
void set_thread_world(const std::optional<World>& world);

// Whether this process has ever had a world that was set, even if it has ended.
bool has_had_world();

// Called by a process that becomes another one: has_had_world() is false again.
void forget_worlds();

// A line of log(), with its newline. `rank`: of this process among several; a message that names it gets no
// second one.
std::string log_line(LogLevel level, std::string_view message, std::optional<int> rank);

// Writes a line of log(), with its newline, to stderr. Called by any thread.
using LogWriter = void (*)(std::string_view line);

// In place of one write(2); nullptr: that again.
void set_log_writer(LogWriter writer);

// Whether log() writes lines of this level.
bool is_logged(LogLevel level);

}  // namespace lockstep
