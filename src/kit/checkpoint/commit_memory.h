// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/serialize/value.h>

#include "base/shared_memory.h"
#include "base/unique_fd.h"

namespace lockstep::checkpointing {

// The two newest commits of a rank, in a file that outlives the rank (RunMemory::commits()). A rank that the kernel
// kills at any instruction leaves every commit complete that it had completed before; its replacement, with an object
// on the same file, finds those and no other. Commit n has slot n % 2. Not thread-safe.
//
// A commit has parts with keys. A part holds the pickle and the storages of serialize::pickle_value(). Tensors of a part
// that share a storage share it after read(), and a view is written with its whole storage. A commit of the size that its
// slot already has allocates no memory in the file. The bytes of a part do not depend on their place, so another
// memory can take them.
class CommitMemory {
 public:
  // The commits of the rank itself, or the copies that it keeps of those of others. Both have two slots in the file.
  enum class Use : std::uint8_t { commits, copies };

  struct Part {
    std::int64_t key = 0;
    Value state{};
    std::size_t least_bytes = 0;  // which the part takes
  };

  // Duplicates the descriptor of an anonymous file, which is empty or was written by another object. Throws Error for
  // a file of another version of Lockstep, and where the system refuses.
  explicit CommitMemory(int fd, Use use = Use::commits);

  // Writes commit `number`, 0 or more, over the one that its slot has. Tensors may be on any device. Throws Error when
  // memory is short or `ulimit -f` is too small: the slot is then empty. Throws CheckpointError, and changes nothing,
  // for a value that cannot be saved. The other slot never changes.
  void write(std::int64_t number, const std::vector<Part>& parts);
  // The numbers of the complete commits, ascending.
  std::vector<std::int64_t> numbers() const;
  bool has(std::int64_t number) const;
  // The keys of a complete commit. This and the next three throw Error for a commit or a part that is not there.
  std::vector<std::int64_t> keys(std::int64_t number) const;
  // The state of a part. Its tensors are copies on the CPU.
  Value read(std::int64_t number, std::int64_t key) const;
  // The bytes of a part, in the memory itself: until its slot changes.
  at::Tensor bytes(std::int64_t number, std::int64_t key) const;
  // They as a part of `size` bytes, which are not fewer: a copy, unless it has this size already.
  at::Tensor bytes(std::int64_t number, std::int64_t key, std::size_t size) const;
  // Empties the slots with greater numbers.
  void forget_after(std::int64_t number);

  // For parts that others send: empties the slot and returns its first `size` bytes, in which the parts have to lie one
  // behind the other before complete(). Throws as write().
  at::Tensor begin(std::int64_t number, std::size_t size);
  // Throws Error, and leaves the slot empty, unless the bytes are parts of commit `number`.
  void complete(std::int64_t number);

 private:
  struct Slot;
  struct Header;
  struct PartHeader;

  void initialize();
  Header& header() const;
  Slot& slot_of(std::int64_t number) const;
  Slot& empty(std::int64_t number, std::size_t bytes, std::size_t spare);
  void map_at_least(std::size_t bytes) const;
  void make_room(Slot& slot, std::size_t bytes);
  void free_pages(std::size_t first, std::size_t last) const;
  std::vector<const PartHeader*> parts_of(std::int64_t number, const Slot& slot) const;
  const PartHeader& find_part(std::int64_t number, std::int64_t key) const;
  at::Tensor bytes_at(const void* place, std::size_t count) const;

  UniqueFd fd_;
  std::size_t first_slot_;
  mutable std::shared_ptr<SharedMemory> memory_;  // grows with the file; tensors keep what they lie in
};

}  // namespace lockstep::checkpointing
