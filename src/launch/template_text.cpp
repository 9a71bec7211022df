// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/launch/template_text.h>

namespace lockstep::launch {

std::string filled_in(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string filled;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto start = text.find("${", at);
    const auto end = start == std::string::npos ? std::string::npos : text.find('}', start);
    if (end == std::string::npos) break;
    const auto value = values.find(text.substr(start + 2, end - start - 2));
    filled.append(text, at, start - at);
    filled += value == values.end() ? text.substr(start, end + 1 - start) : value->second;
    at = end + 1;
  }
  return filled.append(text, at);
}

}  // namespace lockstep::launch
