// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <string>

#include "launch/failure_report.h"

namespace lockstep::launch {

// What the supervisor of a node's ranks did or saw at one moment. It writes each entry as a line of JSON to
// LaunchOptions::account.
struct AccountEntry {
  double time = 0;               // in seconds since 1970
  int restarts = 0;              // of the ranks before
  std::map<int, int> started{};  // [rank] pid: the ranks started
  // The one in `started` replaces one that failed, or without one the others go on, as this line says; else empty.
  std::string replacement{};
  std::optional<RankExit> exit{};  // a rank ended,
  bool was_stopped = false;        // while the ranks were being stopped
  int signal = 0;                  // a stop signal for the run has come; 0: none
  std::optional<FailureReport>
      failure{};  // the ranks failed; the last one with these restarts has all that is known
};

// One line, without its newline.
std::string encode(const AccountEntry& entry);
// Throws LaunchError for a line that encode() has not made.
AccountEntry decode_account_entry(const std::string& line);

// Writes the entry, with the present time, to a descriptor; -1: nowhere. What a full pipe does not take is lost.
void write_account(int fd, AccountEntry entry);

}  // namespace lockstep::launch
