// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::doctor {

enum class Severity {
  ok,
  warning,  // training works, but may be slow or fail later
  problem,  // training fails
};

// The outcome of one check.
struct Finding {
  std::string check{};  // its name
  Severity severity = Severity::ok;
  std::string text{};    // what was found, in one line
  std::string remedy{};  // what to do about it; empty when it is ok
};

using Findings = std::vector<Finding>;

inline Finding ok(std::string check, std::string text) {
  return {.check = std::move(check), .severity = Severity::ok, .text = std::move(text)};
}
inline Finding warning(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Severity::warning, std::move(text), std::move(remedy)};
}
inline Finding problem(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Severity::problem, std::move(text), std::move(remedy)};
}

}  // namespace lockstep::doctor
