// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep::testing {

/// One line of a Python oracle: "kind name=value ... : numbers".
struct SamplerCase {
  std::string line;
  std::string kind;
  std::map<std::string, std::int64_t> arguments;
  std::vector<std::int64_t> numbers;

  std::int64_t operator[](const std::string& name) const { return arguments.at(name); }
};

inline std::vector<SamplerCase> parse_cases(const std::string& text) {
  std::vector<SamplerCase> cases;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    SamplerCase parsed{.line = line.substr(0, line.find(':')), .kind = {}, .arguments = {}, .numbers = {}};
    std::istringstream words(line);
    words >> parsed.kind;
    for (std::string word; words >> word && word != ":";) {
      const auto equals = word.find('=');
      parsed.arguments[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
    }
    for (std::int64_t number = 0; words >> number;) parsed.numbers.push_back(number);
    cases.push_back(std::move(parsed));
  }
  return cases;
}

}  // namespace lockstep::testing
