// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/plan.h"

namespace lockstep::shm {

// What a rank has for another one.
struct Row {
  const std::byte* mapped = nullptr;  // in memory that this rank maps; else
  std::uint64_t address = 0;          // in the process of that rank
};

// A call other than one that reduces whole tensors, whose data is read where it lies: each rank reads what
// the others have for it, and writes its own output. A rank whose data is read waits for its readers, because
// the caller may then change it.
class DirectRead {
 public:
  // Construct it after all ranks have published call `number`. rows[i]: what rank i has for this one; in a
  // reduction, mapped. `readers`: the ranks that read from this one. `plan` is of plan_small() and outlives
  // this object.
  DirectRead(const Communicator& communicator, std::uint64_t number, std::vector<Row> rows,
             std::vector<int> readers, const Plan& plan);

  bool advance();  // as Task::advance()
  // Until this rank has read: ranks that have left although it needs their data. Then those that have not
  // read its own.
  std::vector<int> awaited() const;

 private:
  bool read();
  bool can_trust() const;
  void take();
  void fail_for(int rank, bool is_gone);
  void reduce();
  std::vector<int> givers() const;

  const Communicator& communicator_;
  std::uint64_t number_;
  std::vector<Row> rows_;
  std::vector<int> readers_;
  const Plan& plan_;
  bool has_read_ = false;
};

}  // namespace lockstep::shm
