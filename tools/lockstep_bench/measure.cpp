// SPDX-License-Identifier: BSD-3-Clause
#include "measure.h"

#include <chrono>
#include <cstring>

#include <ATen/ops/full.h>

#include "rank.h"
#include "report.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Cases alternate in slices of a few calls, so that disturbances affect all of them.
constexpr int kSlices = 10;

// Untimed calls at the start of a slice, which restore caches, branch predictors and clock rates. Slices of
// short calls take microseconds and need as many untimed as timed calls.
int warmup_calls(int calls) { return calls >= 50 ? calls : 1; }

std::int64_t max_over_ranks(const ProcessGroup& group, std::int64_t own) {
  const auto number = at::full({1}, own, at::kLong);
  group.all_reduce(number, ReduceOp::MAX);
  return *number.const_data_ptr<std::int64_t>();
}

double time_once(const Trial& trial, const Sync& sync) {
  trial.rewrite();
  start_together([&](std::int64_t own) { return max_over_ranks(sync.group, own); }, sync.by_clock);
  const auto start = Clock::now();
  trial.run();
  const auto end = Clock::now();
  // Keeps a rank from rewriting its buffer while others still use it.
  sync.group.barrier();
  return std::chrono::duration<double>(end - start).count();
}

void check_once(BenchCase& each, const Sync& sync) {
  each.trial.clear_output();
  time_once(each.trial, sync);
  each.wrong += each.trial.wrong();
}

std::string as_bytes(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

}  // namespace

void time_interleaved(std::vector<BenchCase>& cases, const Sync& sync, const Plan& plan) {
  for (auto& each : cases) {
    if (plan.check) check_once(each, sync);
    for (int i = 0; i < plan.warmup; ++i) time_once(each.trial, sync);
  }
  for (int slice = 0; slice < kSlices; ++slice) {
    const int calls = plan.iterations * (slice + 1) / kSlices - plan.iterations * slice / kSlices;
    for (auto& each : cases) {
      for (int i = 0; calls > 0 && i < warmup_calls(calls); ++i) time_once(each.trial, sync);
      for (int i = 0; i < calls; ++i) each.spans.push_back(time_once(each.trial, sync));
    }
  }
  for (auto& each : cases) {
    if (plan.check) check_once(each, sync);
  }
}

std::vector<double> slowest_spans(const BenchCase& each, const ProcessGroup& group) {
  std::vector<std::vector<double>> spans;
  for (const auto& bytes : group.all_gather_object(as_bytes(each.spans))) {
    std::memcpy(spans.emplace_back(bytes.size() / sizeof(double)).data(), bytes.data(), bytes.size());
  }
  return slowest(spans);
}

std::int64_t total_wrong(const BenchCase& each, const ProcessGroup& group) {
  std::int64_t all = 0;
  for (const auto& one : group.all_gather_object(std::to_string(each.wrong))) all += std::stoll(one);
  return all;
}

}  // namespace lockstep::bench
