// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace lockstep::launch {

// What the supervisor of the ranks and the threads of the launcher's process tell each other. It lies in memory that
// both processes map.
class RunNotes {
 public:
  // How often ranks were restarted until now.
  std::atomic<int> restarts{0};

  // A process of the session of `rank` is about to get SIGKILL from this launcher. `reason` as in "no progress for
  // 60.2 s; --progress-timeout 60"; what does not fit is cut off. The last kills are kept. One thread notes kills.
  void note_kill(pid_t rank, std::string_view reason);
  // The signal was not sent.
  void withdraw_kill(pid_t rank);
  // The reason of the last noted kill of the rank; empty: the launcher has not killed it.
  std::string kill_reason(pid_t rank) const;

 private:
  struct Kill {
    std::atomic<pid_t> rank{0};  // set after `reason`
    std::array<char, 156> reason{};
  };

  std::array<Kill, 32> kills_{};
  std::size_t next_ = 0;  // the oldest one
};

}  // namespace lockstep::launch
