// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

namespace lockstep::training {

// Notes signals while it exists. The first signal of a kind is noted, the next has its former effect, so that
// a program that does not get to its next step can still be ended. The destructor raises a noted signal that
// nobody has taken. One at a time in a process.
class StopSignals {
 public:
  // Throws ArgumentError for a signal that cannot be handled.
  explicit StopSignals(const std::vector<int>& signals);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Whether an object exists and a signal has arrived since its construction.
  static bool arrived();
  // The program stops for the signals that have arrived or still arrive.
  static void take();

 private:
  void restore() noexcept;

  std::vector<int> signals_;
};

}  // namespace lockstep::training
