// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>

namespace lockstep::simulated {

inline constexpr int kMostRanks = 16;

// A buffer of one rank for the others to read.
struct SharedBuffer {
  std::atomic<pid_t> process;
  std::atomic<const void*> address;
  std::atomic<std::uint64_t> call;  // the call that uses it, for comparison
};

inline constexpr std::uint64_t kMostMessages = 64;  // that have not been received yet

// From one rank to another, in order.
struct Messages {
  SharedBuffer buffers[kMostMessages];
  std::atomic<std::uint64_t> posted, taken;
};

struct BoardPage {
  std::atomic<int> joined;
  std::atomic<std::uint64_t> meetings[kMostRanks];  // at which each rank has arrived
  SharedBuffer buffers[kMostRanks];
  Messages messages[kMostRanks][kMostRanks];  // from, to
};

// What the ranks of a communicator share: they meet, and read each other's memory. One thread of a rank at a
// time.
class Board {
 public:
  // Waits for all ranks; throws after a minute.
  Board(std::string name, int rank, int size);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Each rank publishes its buffer; `act` may then read those of the others. Returns false if the
  // communicator was aborted.
  template <typename Act>
  bool exchange(std::uint64_t call, const void* buffer, const Act& act) {
    publish(page_->buffers[rank_], call, buffer);
    if (!meet()) return false;
    compare_calls();
    act();
    return meet();
  }
  void read(int rank, void* to, std::size_t bytes, std::size_t offset = 0) const;

  // Returns false if the communicator was aborted.
  bool post(int to, std::size_t bytes, const void* buffer);
  bool take(int from, void* buffer, std::size_t bytes);
  bool wait_until_taken(int to);

  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }

 private:
  static void publish(SharedBuffer& shared, std::uint64_t call, const void* buffer);
  void compare_calls() const;
  bool meet();
  template <typename Condition>
  bool wait(const Condition& condition) const;

  std::string name_;
  int rank_, size_;
  BoardPage* page_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace lockstep::simulated
