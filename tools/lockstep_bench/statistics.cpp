// SPDX-License-Identifier: BSD-3-Clause
#include "statistics.h"

#include <algorithm>
#include <cmath>

namespace lockstep::bench {

int iterations_for(std::size_t bytes) {
  constexpr std::size_t kMegabyte = 1UL << 20U;
  if (bytes <= kMegabyte / 16) return 1000;
  if (bytes <= kMegabyte) return 300;
  return bytes <= 16 * kMegabyte ? 60 : 20;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

std::vector<double> slowest(const std::vector<std::vector<double>>& spans) {
  std::vector<double> longest = spans.front();
  for (const auto& one : spans) {
    for (std::size_t call = 0; call < longest.size(); ++call) {
      longest[call] = std::max(longest[call], one.at(call));
    }
  }
  return longest;
}

Row with_times(Row row, const std::vector<double>& seconds, double bus_factor) {
  const double median = quantile(seconds, 0.5);
  row.microseconds = median * 1e6;
  row.p10 = quantile(seconds, 0.1) * 1e6;
  row.p90 = quantile(seconds, 0.9) * 1e6;
  row.algbw = median > 0 ? static_cast<double>(row.bytes) / median / 1e9 : 0;
  row.busbw = row.algbw * bus_factor;
  return row;
}

}  // namespace lockstep::bench
