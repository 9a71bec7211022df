// SPDX-License-Identifier: BSD-3-Clause
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3;
constexpr int kTurns = 5;

double time_once(const Trial& trial, const ProcessGroup& sync) {
  trial.rewrite();
  sync.barrier();
  const auto begin = Clock::now();
  trial.run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string as_bytes(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

std::vector<double> slowest(const std::vector<double>& own, const ProcessGroup& sync) {
  auto longest = own;
  for (const auto& bytes : sync.all_gather_object(as_bytes(own))) {
    std::vector<double> spans(own.size());
    std::memcpy(spans.data(), bytes.data(), bytes.size());
    std::ranges::transform(longest, spans, longest.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  return longest;
}

}  // namespace

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

void time_in_turns(std::vector<Contender>& contenders, const ProcessGroup& sync, int iterations, bool check) {
  for (auto& contender : contenders) {
    for (int i = 0; i < kWarmUps; ++i) time_once(contender.trial, sync);
    if (check) contender.wrong = contender.trial.wrong();
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    const int calls = iterations * (turn + 1) / kTurns - iterations * turn / kTurns;
    for (auto& contender : contenders) {
      for (int i = 0; i < calls; ++i) contender.spans.push_back(time_once(contender.trial, sync));
    }
  }
  for (auto& contender : contenders) {
    if (check) contender.wrong += contender.trial.wrong();
  }
}

Row summarize(const Contender& contender, const ProcessGroup& sync, Row row, double bus_factor) {
  const auto spans = slowest(contender.spans, sync);
  const double median = quantile(spans, 0.5);
  row.backend = contender.backend;
  row.memory = contender.memory;
  row.microseconds = median * 1e6;
  row.p10 = quantile(spans, 0.1) * 1e6;
  row.p90 = quantile(spans, 0.9) * 1e6;
  row.algbw = median > 0 ? static_cast<double>(row.bytes) / median / 1e9 : 0;
  row.busbw = row.algbw * bus_factor;
  row.wrong = 0;
  for (const auto& wrong : sync.all_gather_object(std::to_string(contender.wrong))) {
    row.wrong = contender.wrong < 0 ? -1 : row.wrong + std::stoll(wrong);
  }
  return row;
}

}  // namespace lockstep::bench
