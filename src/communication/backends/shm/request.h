// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/shm/element.h"

namespace lockstep::shm {

struct Source {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

struct Target {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

enum class Kind : std::uint8_t {
  all_reduce,      // outputs: the tensor, in place
  broadcast,       // outputs: the tensor, which the root sends
  reduce,          // outputs: the tensor, in place on the root, unchanged on other ranks
  all_gather,      // inputs: one; outputs: one a rank
  gather,          // inputs: one; outputs: one a rank, on the root
  scatter,         // inputs: one a rank, on the root; outputs: one
  reduce_scatter,  // inputs: one a rank; outputs: one
  all_to_all,      // inputs: one a rank; outputs: one a rank
  barrier,
};

// One rank's request.
struct Request {
  Kind kind = Kind::barrier;
  Element element = Element::u8;
  Reduction reduction = Reduction::sum;  // of the reducing kinds
  int root = 0;                          // of the rooted kinds
  std::vector<Source> inputs = {};
  std::vector<Target> outputs = {};
  std::uint64_t log_number = 0;   // the call's number in the rank's log, for messages
  std::uint64_t fingerprint = 0;  // see comm::fingerprint(): equal on all ranks
};

// A collective or a message in progress. The holder of the engine's lock advances it.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Advances without waiting. Returns true when the task is finished.
  virtual bool advance() = 0;
  // The ranks that it waits for, if known.
  virtual std::vector<int> awaited() const = 0;

  bool finished() const { return finished_.load(std::memory_order_acquire); }
  virtual void set_finished() { finished_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> finished_{false};
};

const char* name_of(Kind kind);            // "all_reduce"
const char* name_of(Element element);      // "f32"
const char* name_of(Reduction reduction);  // "sum"

constexpr bool has_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}
constexpr bool has_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather || kind == Kind::scatter;
}
// Whether the number of elements may differ between ranks.
constexpr bool is_uneven(Kind kind) {
  return kind == Kind::all_gather || kind == Kind::gather || kind == Kind::all_to_all;
}

// The size in the call's description: bytes of its tensor, or of all of this rank's inputs.
std::uint64_t size_of(const Request& request);
// All other properties that must be equal on all ranks, in one number.
std::uint64_t packed(const Request& request);
// "broadcast of 12 x f32, root 0", from packed() and size_of().
std::string describe(std::uint64_t packed, std::uint64_t bytes);

}  // namespace lockstep::shm
