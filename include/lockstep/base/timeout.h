// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <concepts>
#include <source_location>
#include <type_traits>

namespace lockstep {

/// A time limit: any std::chrono duration, or a number of seconds. `{.timeout = 30}`, `{.timeout = 0.5}` and
/// `{.timeout = std::chrono::minutes(2)}` are 30 s, 500 ms and 2 min. Rounded up to whole milliseconds.
///
/// Throws ArgumentError that names the value unless it is positive and at most 100 years. "No limit" is not a
/// Timeout: options that allow it are a std::optional<Timeout> without a value. PyTorch: `timedelta`, e.g.
/// `timedelta(seconds=30)`.
class Timeout {
 public:
  template <typename Rep, typename Period>
  Timeout(std::chrono::duration<Rep, Period> limit,
          std::source_location where = std::source_location::current())
      : limit_(checked(std::chrono::duration<double>(limit).count(), where)) {}

  template <typename Number>
    requires(std::is_arithmetic_v<Number> && !std::same_as<Number, bool>)
  Timeout(Number seconds, std::source_location where = std::source_location::current())
      : limit_(checked(static_cast<double>(seconds), where)) {}

  operator std::chrono::milliseconds() const { return limit_; }
  /// The limit in milliseconds.
  std::chrono::milliseconds milliseconds() const { return limit_; }

  friend bool operator==(const Timeout&, const Timeout&) = default;

 private:
  static std::chrono::milliseconds checked(double seconds, std::source_location where);

  std::chrono::milliseconds limit_;
};

}  // namespace lockstep
