// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What mutate.py includes into the files that it changes. One build holds all mutants: LOCKSTEP_MUTANT chooses the one that is in
// effect. With LOCKSTEP_MUTANTS_REACHED, a file, each process appends the numbers of the mutants whose lines it runs.

#include <array>
#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <unistd.h>

// Which mutated code deserves, and which would be errors.
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused"

namespace lockstep::mutations {

struct Choice {
  static constexpr int kMost = 4096;
  int chosen = 0;
  const char* reached_file = nullptr;
  std::array<std::atomic<bool>, kMost> reached = {};

  Choice() : reached_file(std::getenv("LOCKSTEP_MUTANTS_REACHED")) {
    if (const char* number = std::getenv("LOCKSTEP_MUTANT")) chosen = std::atoi(number);
  }
};

inline Choice& choice() {
  static auto* const only = new Choice;  // which threads use until the process ends
  return *only;
}

// Only calls that a signal handler and a forked child may make.
inline void note_reached(Choice& choice, int number) {
  if (choice.reached[static_cast<std::size_t>(number)].exchange(true)) return;
  std::array<char, 16> line = {};
  auto* digit = line.end();
  *--digit = '\n';
  for (; number > 0; number /= 10) *--digit = static_cast<char>('0' + number % 10);
  const int file = ::open(choice.reached_file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  [[maybe_unused]] const auto written = ::write(file, digit, static_cast<std::size_t>(line.end() - digit));
  ::close(file);
}

}  // namespace lockstep::mutations

// Whether mutant `number` is in effect.
inline bool lockstep_mutant(int number) {
  auto& choice = lockstep::mutations::choice();
  if (choice.reached_file != nullptr) lockstep::mutations::note_reached(choice, number);
  return choice.chosen == number;
}
