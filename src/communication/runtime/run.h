// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <source_location>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/world.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/runtime/default_group.h>

namespace lockstep {
class Context;
}

namespace lockstep::runtime {

class ElasticRun;

// This rank's membership in a run, implemented by init()'s session.
class Run {
 public:
  Run() = default;
  virtual ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  virtual const ProcessGroup& group() const = 0;
  virtual const World& world() const = 0;
  virtual c10::Device device() const = 0;
  // As Context::new_group().
  virtual ProcessGroup new_group(std::vector<int> ranks, const GroupOptions& options) = 0;
  // [rank of `group`]: number of its host.
  virtual std::vector<int> hosts_of(const ProcessGroup& group) const = 0;
  // As lockstep::split_group().
  virtual ProcessGroup split_group(const ProcessGroup& parent,
                                   const std::vector<std::vector<int>>& split_ranks,
                                   const GroupOptions& options) = 0;
  // What init() has returned, or what that was moved to.
  virtual const Context& context() const = 0;
  // If the launcher replaces lost ranks; otherwise nullptr.
  virtual ElasticRun* elastic() { return nullptr; }
};

// The run of this process or, in a thread rank, of this thread; nullptr without one.
Run* current_run();
// The same, but throws ArgumentError naming `caller` without one.
Run& require_run(const char* caller);

// Makes `run` the current run of this process or of this thread. Throws ArgumentError if the process has one.
enum class Scope { process, thread };
void enter(Run& run, Scope scope);
// The current run has another world.
void change_world(const Run& run);
// Reverts enter(). Does nothing for a run that is not current.
void leave(Run& run) noexcept;

// `given`, or else the default group, or else nothing. `what`: who asks, for messages. Throws ArgumentError
// in a rank of a launcher that has not called init(), and on a rank outside of `given`.
std::optional<ProcessGroup> group_or_default(const std::optional<ProcessGroup>& given, const char* what);
// `given`, or else the default group. Throws ArgumentError naming `what` without one, and on a rank outside of
// `given`.
ProcessGroup required_group(const std::optional<ProcessGroup>& given, const char* what);
// For what keeps the result of group_or_default(): throws ArgumentError if `group` is none, but the process
// is in a run of several ranks now.
void require_made_in_run(const std::optional<ProcessGroup>& group, const char* what);

}  // namespace lockstep::runtime
