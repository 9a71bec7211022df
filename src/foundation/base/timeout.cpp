// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include <lockstep/base/timeout.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

constexpr double kLongest = 100.0 * 365 * 24 * 3600;  // seconds; deadlines in nanoseconds must not overflow

// Up to the next millisecond, but not for an error of binary fractions: 0.07 * 1000 is above 70.
double whole_milliseconds(double seconds) {
  const double exact = seconds * 1000;
  const double nearest = std::round(exact);
  return std::max(1.0, std::abs(exact - nearest) < 1e-6 ? nearest : std::ceil(exact));
}

}  // namespace

std::chrono::milliseconds Timeout::checked(double seconds, std::source_location where) {
  const CallerPlace place(where);
  if (!(seconds > 0 && seconds <= kLongest)) {  // also not a number
    throw_error<ArgumentError>(
        "a time limit of {} s; it must be positive and at most 100 years. An option that may have no limit has "
        "none if it is left out",
        seconds);
  }
  return std::chrono::milliseconds(static_cast<std::chrono::milliseconds::rep>(whole_milliseconds(seconds)));
}

}  // namespace lockstep
