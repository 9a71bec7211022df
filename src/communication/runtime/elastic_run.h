// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>

#include "base/run_memory.h"

namespace lockstep {
class Context;
}

namespace lockstep::runtime {

class Run;

// A rank's side of a run that continues after the loss of ranks: the launcher replaces them, or the others go on
// without them. Note [Replaced ranks] in rendezvous/generations.h.
class ElasticRun {
 public:
  ElasticRun() = default;
  virtual ~ElasticRun() = default;
  ElasticRun(const ElasticRun&) = delete;
  ElasticRun& operator=(const ElasticRun&) = delete;

  virtual const RunMemory& memory() const = 0;
  // Whether this process has taken the place of a lost rank and has not met the other ranks yet: its default
  // group is simulated.
  virtual bool is_replacement() const = 0;
  // The phase of the run on all hosts. These three may ask the launcher of node 0, and throw Error if it is lost.
  virtual RunPhase phase() const = 0;
  virtual void set_phase(RunPhase phase) = 0;
  // All ranks are in elastic::run(): changes RunPhase::starting to running.
  virtual void begin_running() = 0;
  // Whether new_group() or split_group() has made groups, which end when the default group is formed again.
  virtual bool has_other_groups() const = 0;
  // Whether another rank forms the default group again, so that this one must, too.
  virtual bool must_form_again() const = 0;
  // Forms the default group again; its copies then refer to the new group. It has as many ranks, or with
  // RunMemory::can_shrink() those that are left, numbered anew in their order. Waits for the replacements of lost ranks,
  // at most the timeout of the group for each attempt, and begins anew when a rank is lost meanwhile. Throws
  // RendezvousError naming the ranks that have not come. On several hosts it first ends the calls of the others that need
  // this rank.
  virtual void form_again() = 0;
};

// For change_world() after the loss of ranks: what was made in the larger world follows into the smaller one, see
// world_since().
void shrink_world(const Run& run);

// ElasticRun::is_replacement() of the current run; false without one.
bool is_replacement();

}  // namespace lockstep::runtime
