// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <pthread.h>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"

namespace lockstep {

// Note [Memory of a run]
//
// A launcher that replaces single ranks, or lets the others go on without them, gives all ranks of the run memory that
// outlives each of them: anonymous files, whose descriptors every rank inherits. The kernel frees it when launcher and
// ranks have ended, whatever ended them. One file holds the state of the run and the memory of its store. Beside it each rank has a file
// for its commits, which its replacement inherits too.
//
// In a run on several hosts each launcher gives such memory to the ranks of its host. The ranks of all hosts then share a
// store that the launcher of node 0 serves (note [Store of a run on several hosts] in launch/run_store_server.h), and
// what all of them agree on stands there; `phase` is a copy for the launcher of the host.

enum class RunPhase : std::uint32_t {
  starting,  // no rank can fail alone: others may be in the calls of the program's beginning
  running,   // every rank is in elastic::run() and has committed its state
  finished,  // every rank has done its work in elastic::run()
  stopped    // all ranks have left elastic::run() with an error that would come again: no rank starts again
};

// At the beginning of the first file. Ranks write it; the launcher reads the phase and writes `lost` and `hosts_lost`.
struct RunState {
  static constexpr std::uint32_t kFormat = 5;
  static constexpr int kMostRanks = 2048;
  static constexpr std::size_t kMostOfToken = 96;

  std::uint32_t format = kFormat;
  std::int32_t world_size = 0;
  bool can_shrink = false;       // a lost rank is not replaced: the others go on without it
  std::int32_t first_rank = 0;   // of this host
  std::int32_t local_ranks = 0;  // their number
  std::uint16_t store_port = 0;  // on the host of node 0; 0: one host, whose store is in this memory
  std::array<char, kMostOfToken + 1> store_token{};  // what that store asks for; ends with 0
  std::atomic<RunPhase> phase{RunPhase::starting};
  std::atomic<std::uint32_t> changes{0};      // of the store and of `proposed`; a futex
  std::atomic<std::uint64_t> proposed{0};     // the generation that the default group has, or is to have
  std::atomic<std::uint64_t> formed{0};       // the last generation that a rank has entered
  pthread_mutex_t store_mutex{};              // robust and shared between processes
  std::atomic<std::uint64_t> store_bytes{0};  // of the store's memory that hold records
  std::uint64_t committed_bytes = 0;          // of the store's memory; guarded by store_mutex
  std::atomic<std::uint32_t> hosts_lost{0};   // of the launcher: how often other hosts were lost; a futex
  std::array<std::atomic<bool>, kMostRanks> lost{};  // [rank] of the launcher: with can_shrink, it has ended

  // After a change of what waits look at.
  void note_change() {
    changes.fetch_add(1, std::memory_order_release);
    futex_wake_all(changes);
  }
};

class RunMemory {
 public:
  // The descriptors of the files, for the ranks.
  static constexpr const char* kVariable = "LOCKSTEP_RUN_MEMORY";

  // The part of one host in a run on several.
  struct Share {
    int first_rank = 0;
    int ranks = 1;
    std::uint16_t store_port = 0;
    std::string store_token{};  // at most RunState::kMostOfToken
  };

  // In the launcher; programs that it starts inherit the files. `share`: none on one host. Throws Error if the
  // system refuses.
  static RunMemory create(int world_size, bool can_shrink = false, const std::optional<Share>& share = {});
  // In a rank: the launcher's; nullopt without one. Programs that the rank starts do not inherit it. Throws Error
  // for memory of another version.
  static std::optional<RunMemory> inherited(const Env& env);

  std::string variable() const;  // the value of kVariable
  // The number of ranks on all hosts, those that are lost included.
  int world_size() const { return state().world_size; }
  bool can_shrink() const { return state().can_shrink; }
  bool has_several_hosts() const { return state().store_port != 0; }
  std::string store_token() const { return state().store_token.data(); }
  // The ranks of the launcher that are not lost, ascending.
  std::vector<int> remaining() const;
  // In the launcher: the rank has ended, and the others go on without it.
  void lose(int rank) const;
  RunState& state() const { return *reinterpret_cast<RunState*>(memory_.data()); }
  std::span<std::byte> store() const;
  // Allocates the first `bytes` of store(), as SharedMemory::commit().
  void commit_store(std::size_t bytes) const;
  // The file for the commits of a rank of this host, of any size. The caller does not close it.
  int commits(int rank) const {
    return commits_.at(static_cast<std::size_t>(rank - state().first_rank)).get();
  }

 private:
  RunMemory(SharedMemory memory, std::vector<UniqueFd> commits)
      : memory_(std::move(memory)), commits_(std::move(commits)) {}

  SharedMemory memory_;
  std::vector<UniqueFd> commits_;  // [local rank]
};

}  // namespace lockstep
