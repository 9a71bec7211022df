// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <gmock/gmock.h>

#include "doctor/facts.h"

namespace lockstep::doctor {

inline void PrintTo(const Finding& finding, std::ostream* out) {
  *out << static_cast<int>(finding.severity) << ' ' << finding.check << ": " << finding.text << " -> "
       << finding.remedy;
}

// It is fine, and nothing is to be done.
inline ::testing::Matcher<Finding> is_ok() {
  return ::testing::AllOf(::testing::Field(&Finding::severity, Severity::ok),
                          ::testing::Field(&Finding::text, ::testing::Not(::testing::IsEmpty())),
                          ::testing::Field(&Finding::remedy, ::testing::IsEmpty()));
}

// It is as bad as `severity`, says `text` somewhere, and has a remedy.
inline ::testing::Matcher<Finding> is_bad(Severity severity, const std::string& text) {
  return ::testing::AllOf(::testing::Field(&Finding::severity, severity),
                          ::testing::Field(&Finding::text, ::testing::HasSubstr(text)),
                          ::testing::Field(&Finding::remedy, ::testing::Not(::testing::IsEmpty())));
}

inline ::testing::Matcher<Finding> is_warning(const std::string& text) {
  return is_bad(Severity::warning, text);
}
inline ::testing::Matcher<Finding> is_problem(const std::string& text) {
  return is_bad(Severity::problem, text);
}

}  // namespace lockstep::doctor
