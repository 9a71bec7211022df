// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <optional>
#include <pthread.h>
#include <string>
#include <string_view>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/world.h>

// The state of the process that base keeps for all layers: what current_world() returns, where the lines of log() go, and
// whether it is a forked child.

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

// Knows whether this process is a forked child of the one that made the object: the child has its memory, but
// neither its threads nor its place among the ranks. A look costs no system call.
class ForkMark {
 public:
  ForkMark() : forks_(count()) {}

  bool is_in_child() const { return forks.load(std::memory_order_relaxed) != forks_; }
  // Throws Error in a child.
  void refuse_wait_in_child() const {
    if (!is_in_child()) return;
    throw Error("process " + std::to_string(::getpid()) +
                " was forked off this rank and must not wait for its calls");
  }

 private:
  static int count() {
    [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
    return forks;
  }

  static inline std::atomic<int> forks{0};  // that made this process, from the first mark on
  int forks_;
};

}  // namespace lockstep
