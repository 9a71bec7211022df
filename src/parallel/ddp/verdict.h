// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::ddp {

// A checksum of each tensor of a list that is the same on all ranks.
using Checksums = std::vector<std::int64_t>;

// What a rank has computed of something that all ranks should compute alike.
struct Answer {
  int rank;
  Checksums checksums;
};

struct Verdict {
  std::vector<int> wrong = {};   // ascending; without a majority all whose answers there are
  bool is_decided = false;       // by a majority: more than one equal answer, and less of each other
  std::size_t first_tensor = 0;  // the first that differs from that of another rank
};

// Empty `wrong`: all are equal.
inline Verdict judge(const std::vector<Answer>& answers) {
  const auto votes = [&](const Answer& answer) {
    return std::ranges::count(answers, answer.checksums, &Answer::checksums);
  };
  const auto best = std::ranges::max_element(answers, {}, votes);
  const auto agrees = [&](const Answer& each) { return each.checksums == best->checksums; };
  Verdict verdict{.is_decided = votes(*best) > 1 && std::ranges::all_of(answers, [&](const Answer& each) {
                                  return agrees(each) || votes(each) < votes(*best);
                                })};
  const auto other = std::ranges::find_if_not(answers, agrees);
  if (other == answers.end()) return verdict;
  for (const auto& each : answers)
    if (!verdict.is_decided || !agrees(each)) verdict.wrong.push_back(each.rank);
  std::ranges::sort(verdict.wrong);
  verdict.first_tensor = static_cast<std::size_t>(
      std::ranges::mismatch(best->checksums, other->checksums).in1 - best->checksums.begin());
  return verdict;
}

}  // namespace lockstep::ddp
