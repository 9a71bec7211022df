// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include <lockstep/base/shared_memory.h>

namespace lockstep::rendezvous {

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
struct SpawnVerdict {
  enum class Kind { none, well, raised, exited, timeout, stopped, trouble };

  Kind kind;
  int rank;    // of the first one that failed
  int code;    // its exit code
  int signal;  // what killed it, or 0
  bool core_dumped;
  SharedText<4096> text;  // timeout: who was still running; trouble: what it was
};

// What one rank tells.
struct SpawnedRank {
  std::atomic<int> pid;
  std::atomic<bool> raised;  // set last
  bool peer_lost;            // it failed because another one had
  SharedText<256> type;
  SharedText<16'384> text;
};

// Memory that the caller of spawn(), its guards and its ranks share. A process that dies leaves what it had
// written, and who waits for its end needs no lock to read it.
class SpawnBoard {
 public:
  explicit SpawnBoard(int nprocs);

  SpawnVerdict& verdict() const { return header()->verdict; }
  SpawnedRank& rank(int rank) const;
  int nprocs() const { return nprocs_; }

 private:
  struct alignas(64) Header {
    SpawnVerdict verdict;
  };
  Header* header() const { return reinterpret_cast<Header*>(memory_.data()); }

  int nprocs_;
  SharedMemory memory_;
};

}  // namespace lockstep::rendezvous
