// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/kernels.h"

namespace lockstep::shm {

// An all-reduce or a reduce of tensors in the ranks' heaps: each part is read from every rank's memory, and
// written to that of all ranks or of the root, without a copy. Every rank starts with its own share. A rank
// that has finished its share and still finds other shares incomplete after some polls claims parts that
// others have not started, so that a busy rank does not delay them. The bits do not depend on the rank that
// reduces a part.
class ZeroCopy {
 public:
  // Construct it after all ranks have published call `number`; rank i's tensor starts at rows[i]. `root`: the
  // rank whose tensor becomes the result, or -1: all.
  ZeroCopy(const Communicator& communicator, std::uint64_t number, std::vector<std::byte*> rows, int root,
           std::size_t bytes, std::size_t width, ReduceKernel kernel);

  bool advance();  // as Task::advance()
  // Owners of shares that are not done.
  std::vector<int> awaited() const;

 private:
  std::uint32_t parts_of(int owner) const;
  Share& share_of(int owner) const { return communicator_.control_block(owner).shares[number_ % kSlots]; }
  bool is_done(int owner) const;
  void work_on(int owner);
  void reduce(std::size_t begin, std::size_t end);

  const Communicator& communicator_;
  std::uint64_t number_;
  std::vector<std::byte*> rows_;
  int root_;
  std::vector<void*> cursors_;
  std::size_t bytes_;
  std::size_t width_;
  ReduceKernel kernel_;
  int polls_ = 0;  // calls of advance(), up to kPollsBeforeHelp + 1
};

}  // namespace lockstep::shm
