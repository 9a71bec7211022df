// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/rank_progress.h"

// A run at one moment, as data.

namespace lockstep::observe {

// A call of a rank in a group.
struct Call {
  std::uint64_t number = 0;           // of the group's calls on this rank
  std::uint64_t sequence = 0;         // among its collectives, or its messages: equal on ranks that agree
  std::string name{};                 // "all_reduce"
  std::string dtype{};                // "Float"; empty for a barrier
  std::string op{};                   // "SUM"; empty for calls that do not reduce
  std::vector<std::int64_t> shape{};  // of the rank's first tensor: at most five dimensions
  int dims = 0;                       // all of them
  int peer = -1;                      // of a message, or the root; -1: none or any
  std::string file{};                 // without its folder; empty without a place
  std::uint32_t line = 0;
  std::string contents{};      // "gradients of bucket 2", or empty
  std::int64_t issued_at = 0;  // nanoseconds of the host's steady clock

  bool is_message() const { return name == "send" || name == "recv"; }
  // "all_reduce #12 of Float[64, 3] at train.cpp:40 (gradients of bucket 2)"; the number is `sequence`
  std::string describe() const;
};

// What a rank does in one group.
struct Membership {
  std::string group{};
  std::string backend{};        // "shm"
  int rank = 0;                 // in the group
  int size = 0;                 // of the group, or of its part on this host
  std::uint64_t issued = 0;     // number of the last call,
  std::uint64_t completed = 0;  // of the last one known to be complete,
  std::uint64_t awaited = 0;    // of the one that the rank waits for, or 0,
  std::uint64_t failed = 0;     // and of the last one that failed, or 0
  std::uint64_t bytes = 0;      // of the tensors of all calls until now
  std::vector<Call> calls{};    // the last ones, oldest first

  const Call* find(std::uint64_t number) const;
  // The collective with this sequence; nullptr if it is not known (any more).
  const Call* collective(std::uint64_t sequence) const;
  // The sequence of the last collective, 0 without any.
  std::uint64_t last_collective() const;
  // The call that the rank waits for or that failed; nullptr if it does neither.
  const Call* unfinished() const;
};

// The end of a step of a rank, and sums until then.
struct Step {
  std::uint64_t number = 0;
  std::int64_t ended_at = 0;
  PhaseTimes spent{};
  std::uint64_t samples = 0;
};

struct MemorySample {
  std::int64_t at = 0;
  std::int64_t resident = 0;  // bytes
  std::int64_t shared = 0;    // of these, mapped files and memory that processes share

  std::int64_t own() const { return resident - shared; }
};

// How far a rank has come, and what it does. Times are nanoseconds of the host's steady clock.
struct Progress {
  int size = 0;           // ranks of the job
  bool has_left = false;  // it has ended its context; not in JSON
  std::int64_t began_at = 0;
  Phase phase = Phase::other;
  std::int64_t phase_since = 0;
  PhaseTimes spent{};  // until phase_since
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;                              // that loaders have given
  std::int64_t epoch = -1;                                // -1: not set
  std::int64_t gathered = 0;                              // bytes of sharded parameters that are gathered
  std::vector<Step> last{};                               // at most 64, oldest first
  std::vector<MemorySample> memory{};                     // at most 64, oldest first
  std::vector<std::pair<std::string, double>> numbers{};  // of report(), in the order of their first report
  std::string reading{};  // the file that a thread has read for the longest; empty: none
  std::int64_t reading_since = 0;
};

enum class Life : std::uint8_t { alive, stopped, finished, dead };

struct Rank {
  int rank = 0;  // in the job
  std::int64_t pid = 0;
  std::int64_t thread = 0;  // equal to pid unless the rank is a thread
  Life life = Life::alive;
  std::string activity{};  // of its thread: "its thread is running"
  int restarts = 0;        // of the ranks by the launcher before this one
  std::string host{};      // in a run whose ranks were read on several hosts; else empty
  std::vector<Membership> groups{};
  std::optional<Progress> progress{};  // nullopt: not known, as of a rank that has ended

  // "rank 1 (pid 4711)", "rank 1 (thread 4712 of pid 4711)", "rank 1 (pid 4711 on node3)"
  std::string describe() const;
};

// A host of which ranks were to be read.
struct HostState {
  std::string name{};     // differs from those of the others
  std::string problem{};  // why its ranks, or some of them, are not known; empty if they are
};

// The ranks of a run on one host, or on all that could be read, in the order of their numbers.
struct Run {
  std::string id{};  // of the launcher's --run-id; empty without one
  std::string host{};
  std::int64_t taken_at = 0;  // nanoseconds of the host's steady clock
  std::vector<Rank> ranks{};
  std::vector<HostState> hosts{};  // if several were read; else empty
  std::int64_t skew = 0;  // nanoseconds between the moments at which hosts were read, at most; not in JSON

  // Whether all ranks of the job are here.
  bool is_whole() const;
};

nlohmann::json to_json(const Run& run);
// The run of a JSON value that to_json() made. Throws Error for another one.
Run run_from_json(const nlohmann::json& value);

}  // namespace lockstep::observe
