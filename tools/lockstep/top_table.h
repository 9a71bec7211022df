// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "observe/figures.h"
#include "observe/run.h"
#include "observe/verdict.h"

// What `lockstep top` shows as text: a table with a line a rank, and sentences.

namespace lockstep::cli {

// A run at one moment.
struct Snapshot {
  observe::Run run{};
  observe::Figures figures{};
  observe::Verdict verdict{};
};

// Without characters that the terminal of this locale would not show as such: each of their bytes is \xNN.
std::string printable_text(const std::string& text);
// The lines of a text, each as printable_text() gives it.
std::string printable_lines(const std::string& text);
// At most `width` columns of a terminal; printable.
std::string fitting_text(const std::string& text, std::size_t width);
// In lines of at most `width` columns, broken at spaces. Text behind `lines` of them is left out, which "..." shows.
std::vector<std::string> wrapped_text(const std::string& text, std::size_t width, std::size_t lines);

// "3 ms", "4.2 s"
std::string time_text(std::int64_t nanoseconds);

// The first line of the table, and the line of a rank; a wider table has more columns. Both are printable. `hosts`:
// the ranks are those of several hosts.
std::string table_heading(std::size_t width, bool hosts = false);
std::string table_line(const observe::Rank& rank, const observe::RankFigures& figures, std::size_t width);

// "run job on node3: 4 ranks, 2 h, 3.40 steps/s, 435 samples/s", and the traffic of the backends with what the first rank
// reports: "shm 1.5 MiB/s  epoch 3  loss 0.25"
std::string run_line(const Snapshot& snapshot);
std::string numbers_line(const Snapshot& snapshot);
// What a rank does now, in a sentence.
std::string rank_sentence(const observe::Rank& rank, const observe::RankFigures& figures, std::int64_t now);
// The last calls of a rank in all groups, the latest first, a line each.
std::vector<std::string> call_lines(const observe::Rank& rank, std::int64_t now);
// Which rank was the last to enter the last collective of each group.
std::vector<std::string> arrival_lines(const observe::Figures& figures);

// The hosts whose ranks, or some of them, are not seen, and why, a line each.
std::vector<std::string> unseen_lines(const observe::Run& run);

// All of it for a file or a pipe.
std::string plain_text(const Snapshot& snapshot);

}  // namespace lockstep::cli
