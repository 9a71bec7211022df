// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "observe/report/history.h"

namespace lockstep::observe {

// How a rank ended, as its launcher saw it.
struct RankEnd {
  int rank = 0;
  int pid = 0;
  int restarts = 0;
  double time = 0;     // in seconds since 1970
  std::string text{};  // "exited with code 7"
  bool failed = false;
  bool was_stopped = false;  // while the launcher stopped the ranks
};

// The ranks from one start, of all or of one that replaces another, to the next.
struct Attempt {
  int restarts = 0;
  double time = 0;  // in seconds since 1970
  int ranks = 0;
  std::vector<std::string> failure{};  // the launcher's report on it, empty without one
};

using Facts = std::vector<std::pair<std::string, std::string>>;

// All that the page shows. Texts that the program or its user wrote may be any bytes.
struct Report {
  const History& history;
  std::string title{};
  std::string outcome{};  // one sentence
  bool failed = false;
  double began = 0;           // in seconds since 1970,
  std::int64_t began_at = 0;  // and of the steady clock, in nanoseconds
  double seconds = 0;
  std::vector<Attempt> attempts{};
  std::vector<RankEnd> ends{};
  std::vector<std::string> command{};
  Facts facts{};  // versions, the host
  Facts environment{};
  double period = 0;  // seconds from one look at the ranks to the next
  std::uint64_t looks = 0;
  double processor_seconds = 0;  // of all looks
};

nlohmann::json to_json(const Report& report);

// One HTML file that needs no other one.
std::string page_of(const Report& report);

// JSON that can stand in a <script> element: no text in it ends the element.
std::string json_for_script(const nlohmann::json& value);

// The text of page.html, which the build makes a string.
extern const std::string_view kPageTemplate;

}  // namespace lockstep::observe
