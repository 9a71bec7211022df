// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "observe/run.h"

namespace lockstep::observe {

enum class Cause : std::uint8_t {
  none,
  mismatch,   // ranks made different calls
  dead,       // a rank has died
  stopped,    // a signal or a debugger has stopped a rank
  missing,    // a rank does not make a call for which others wait
  deadlock,   // ranks wait for each other, in several groups or with messages
  starved,    // others wait for a rank that waits for data
  slow,       // others wait in each step for a rank that computes for longer
  slow_link,  // communication takes longer than before, and no rank is late
  memory,     // the memory of a rank grows
};

// "mismatch", "dead", ...
std::string name_of(Cause cause);

struct Verdict {
  Cause cause = Cause::none;
  std::vector<int>
      ranks{};         // the culprits; both sides of a mismatch of two ranks, all of a deadlock or slow link
  std::string text{};  // one paragraph
};

// Who keeps the run waiting, and why. A rank that is alive is missing, or starved, once others have waited a second
// for it, or after their call has failed. If nobody waits so long, the last steps are compared (see
// judge_steps()), then the memory (see judge_memory()).
Verdict judge(const Run& run);

// What a rank of `run` does and who waits for it, as judge() says it of a culprit.
std::string stall_text(const Run& run, const Rank& rank);

nlohmann::json to_json(const Verdict& verdict);

}  // namespace lockstep::observe
