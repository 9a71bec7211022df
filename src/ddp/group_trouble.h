// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/comm/process_group.h>

namespace lockstep::ddp {

// How the ranks of one host tell each other that a backward of one DistributedDataParallel went wrong.
// Between hosts it does nothing and knows nothing.
class GroupTrouble {
 public:
  // All ranks make theirs in the same order.
  explicit GroupTrouble(ProcessGroup group);

  // Whether other ranks can be told at all.
  bool tells_others() const;

  // While it lives, this rank's waits end when another one gives up the step.
  class [[nodiscard]] Listening {
   public:
    explicit Listening(const GroupTrouble& trouble);
    ~Listening();
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;

   private:
    const GroupTrouble& trouble_;
  };

  // All ranks are through with the step, in whatever way.
  void end_step() { ++step_; }

  // The other ranks' waits in this step end with `reason`. Unless it is final, ranks that give it up as well
  // make its calls all the same, to come together again.
  void give_up(const std::string& reason, bool is_final) const;

  // Throws DesyncError with their reasons when other ranks have given up this step. To be called while
  // listening.
  void throw_if_given_up() const;

  // After give_up(): the other ranks' reasons, a line each. Waits shortly for ranks that are still on their
  // way.
  std::string reasons_of_others() const;

  // Of the last call that this rank issued.
  std::uint64_t last_call() const;
  // The rank that was the last to issue the call, or -1.
  int last_to_issue(std::uint64_t call) const;

 private:
  std::uint64_t scope() const { return (number_ << 40U) + step_; }

  ProcessGroup group_;
  std::uint64_t number_;  // of what this is the trouble of, in the group
  std::uint64_t step_ = 0;
};

}  // namespace lockstep::ddp
