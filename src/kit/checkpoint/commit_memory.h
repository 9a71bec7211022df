// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/serialize/value.h>

#include "base/shared_memory.h"
#include "base/unique_fd.h"

namespace lockstep::checkpointing {

// The two newest commits of a rank, in a file that outlives the rank (RunMemory::commits()). A rank that the kernel
// kills at any instruction leaves every commit complete that it had completed before; its replacement, with an object
// on the same file, finds those and no other. Commit n has slot n % 2. Not thread-safe.
//
// A commit holds the pickle and the storages of serialize::pickle_value(). Tensors that share a storage share it after
// read(), and a view is written with its whole storage. A commit of the size that its slot already has allocates no
// memory in the file.
class CommitMemory {
 public:
  // Duplicates the descriptor of an anonymous file, which is empty or was written by another object. Throws Error for
  // a file of another version of Lockstep, and where the system refuses.
  explicit CommitMemory(int fd);

  // Writes commit `number`, 0 or more, over the one that its slot has. Tensors may be on any device. Throws Error when
  // memory is short or `ulimit -f` is too small: the slot is then empty. Throws CheckpointError, and changes nothing,
  // for a value that cannot be saved. The other slot never changes.
  void write(std::int64_t number, const Value& state);
  // The numbers of the complete commits, ascending.
  std::vector<std::int64_t> numbers() const;
  // The state of a complete commit. Its tensors are copies on the CPU. Throws Error for another number.
  Value read(std::int64_t number) const;
  // Empties the slots with greater numbers.
  void forget_after(std::int64_t number);

 private:
  struct Slot;
  struct Header;

  void initialize();
  Header& header() const;
  Slot& slot_of(std::int64_t number) const;
  void map_at_least(std::size_t bytes) const;
  void make_room(std::int64_t number, std::size_t bytes);
  void free_pages(std::size_t first, std::size_t last) const;

  UniqueFd fd_;
  mutable SharedMemory memory_;  // grows with the file
};

}  // namespace lockstep::checkpointing
