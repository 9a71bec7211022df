// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep::data {

/// Shows on stderr how far a transfer is: a bar on a terminal, a plain line now and then elsewhere.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `total` is 0 while it is not known. Cheap enough to call for every packet.
  void update(std::uint64_t done, std::uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  void show(std::uint64_t done, std::uint64_t total);

  std::string what_;
  bool terminal_;
  bool bar_shown_ = false;
  Clock::time_point next_;
};

}  // namespace lockstep::data
