// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/run_memory.h"

namespace lockstep::rendezvous {

// Note [Replaced ranks]
//
// Under `lockstep run --on-loss replace` the default group has generations. init() connects generation 0. A rank
// that loses a peer proposes the next generation; the others learn of it when their own calls fail, because that
// rank has left the group.
//
//     rank 0   fails: proposes 1 --> handle of 0 --+--------> all are there: reconfigure(1) --> generation 1
//     rank 1   fails: sees 1     --> handle of 1 --+
//     rank 2   dead    replacement: init(), sees 1 --> handle of 2
//
// If a rank dies meanwhile, reconfigure() fails on all of them, and they propose the generation after it. The number
// is in RunState::proposed and only grows, so a rank that comes late finds the latest proposal. No rank and no
// launcher decides for the others.
//
// With `--on-loss shrink` a generation has the ranks that the launcher does not know to be lost, and nobody comes in the
// place of a lost one. Ranks that know of different losses form different lists of handles, which reconfigure()
// refuses; they then propose the next generation. Keys and files of a rank keep the number of the launcher.
//
// On several hosts the store of the run has the number, and the phase of the run: each rank asks it. A rank that fails
// leaves the group before it waits for the others, so that the calls of ranks on other hosts fail too. Each
// launcher replaces the ranks of its host. If a host is lost, another launcher starts its ranks; those of the other hosts
// leave the group when their launcher says so (HostLossWatch).
//
// A replacement runs the beginning of the program alone, as the other ranks have done long ago: until
// elastic::run() its default group is simulated by the backend fake.
class Generations {
 public:
  // `store`: of the run. A replacement begins in the generation that its predecessor was lost in; on several hosts it asks
  // the store for the last one that is proposed, since its launcher may be new.
  Generations(std::shared_ptr<const RunMemory> memory, c10::intrusive_ptr<c10d::Store> store, int rank,
              bool is_replacement = false);

  // The phase on all hosts. These three may ask the store of the run, and throw Error if that is lost.
  RunPhase phase() const;
  void set_phase(RunPhase phase) const;
  // All ranks are in elastic::run(): changes RunPhase::starting to running.
  void begin_running() const;

  std::uint64_t current() const { return current_; }  // from any thread, as propose_after()
  bool is_proposed() const { return proposed() > current_; }
  // Proposes the generation after `generation`, unless there is one.
  void propose_after(std::uint64_t generation) const;

  struct Members {
    std::uint64_t generation;
    std::vector<std::string> handles;  // [rank of the group to form]
  };
  // Announces this rank with `handle` in the generation that is proposed, and in those that are proposed
  // meanwhile. Returns when all ranks that are not lost have announced themselves in the same. Throws
  // RendezvousError naming the ranks that are missing at the timeout, by their numbers of the launcher, and Error if
  // elastic::run() has ended on all ranks.
  Members meet(const std::string& handle, std::chrono::milliseconds timeout) const;
  // The group has this generation now.
  void enter(std::uint64_t generation);

 private:
  std::uint64_t proposed() const;
  void wait_for(const std::vector<std::string>& keys, std::chrono::milliseconds limit) const;
  std::string key(std::uint64_t generation, int rank) const;
  std::vector<std::string> keys(std::uint64_t generation, const std::vector<int>& members) const;
  std::vector<int> missing(std::uint64_t generation, const std::vector<int>& members) const;

  std::shared_ptr<const RunMemory> memory_;
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::atomic<std::uint64_t> current_;
};

}  // namespace lockstep::rendezvous
