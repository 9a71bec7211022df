// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/training/logging.h>

namespace lockstep::training {

// The figures of a progress bar.
struct Meter {
  std::int64_t n = 0;
  std::optional<std::int64_t> total = {};
  std::int64_t initial = 0;
  double elapsed = 0;               // seconds
  std::optional<double> rate = {};  // steps per second; default: that of all steps
  std::string desc = {};
  std::string unit = "it";
  std::string postfix = {};
};

// A line of `columns` characters, with a bar between the figures if there is a total and `columns` is not 0.
// tqdm: format_meter with ascii=True, for texts without wide characters.
std::string meter_text(const Meter& meter, int columns);

// "accuracy=0.9, loss=0.3". tqdm: set_postfix.
std::string postfix_text(const Scalars& values);

}  // namespace lockstep::training
