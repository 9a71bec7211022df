// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::bench {

/// How the ranks of one host begin a call at the same time. They leave a barrier one after the other, by
/// about as much as a short call takes, and the first of them would count that to the call. So they begin
/// when the clock that they share comes to its next full ten microseconds.
class CommonStart {
 public:
  /// Waits for the clock only where each rank has a core: of all ranks, `local_ranks` run on this host.
  CommonStart(int ranks, int local_ranks);

  /// After a barrier.
  void wait() const;

 private:
  bool by_clock_;
};

}  // namespace lockstep::bench
