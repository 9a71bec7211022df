// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <signal.h>
#include <string>
#include <string_view>
#include <sys/types.h>

#include <lockstep/spawn/spawn.h>

#include "base/shared_memory.h"
#include "base/unique_fd.h"

namespace lockstep::spawning {

// Text of bounded length in shared memory.
template <std::size_t size>
struct SharedText {
  std::array<char, size> bytes;

  void set(std::string_view text) {
    const auto count = std::min(text.size(), size - 1);
    std::copy_n(text.begin(), count, bytes.begin());
    bytes[count] = '\0';
  }
  std::string get() const { return bytes.data(); }
};

// How a run of spawn() ended.
struct SpawnOutcome {
  enum class Kind { none, succeeded, raised, exited, timeout, stopped, error };

  Kind kind;
  int rank;    // of the first one that failed
  int code;    // its exit code
  int signal;  // that killed it, or 0
  bool core_dumped;
  bool cpu_limit;
  SharedText<4096> text;  // timeout: the ranks that still ran; error: its message
};

// Written by one rank.
struct RankState {
  std::atomic<int> pid;
  std::atomic<bool> raised;  // written last
  bool peer_lost;            // it failed because another rank had failed
  SharedText<256> type;
  SharedText<16'384> text;
};

// Memory that the caller of spawn(), its guards and its ranks share. What a process wrote before it died
// stays readable; the reader waits for the end of the writer, so no lock is needed.
class SpawnState {
 public:
  explicit SpawnState(int nprocs);

  SpawnOutcome& outcome() const { return header()->outcome; }
  RankState& rank(int rank) const;
  // Keeps an outcome that has been recorded before.
  void record_error(const std::string& message) const;

 private:
  struct alignas(64) Header {
    SpawnOutcome outcome;
  };
  Header* header() const { return reinterpret_cast<Header*>(memory_.data()); }

  SharedMemory memory_;
};

struct SpawnRequest {
  const SpawnOptions& options;
  const std::function<void(int rank)>& body;
  const SpawnState& state;
  int master_port = 0;
  sigset_t signals{};  // blocked in the caller
};

// The caller's end of a run of spawn().
struct SpawnGuard {
  pid_t pid = -1;
  // Readable once the ranks run; at its end when no process of the run is left. Shutting down its sending
  // side asks the ranks to stop.
  UniqueFd line{};
};

// Starts the guards (see launch/guard.h), which start the ranks. They write the pids of the ranks before the
// line becomes readable, and the outcome before its end. REQUIRES one thread in this process. Throws
// LaunchError when no guard can be started.
SpawnGuard start_spawn_guard(const SpawnRequest& request);

}  // namespace lockstep::spawning
