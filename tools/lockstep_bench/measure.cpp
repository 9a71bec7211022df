// SPDX-License-Identifier: BSD-3-Clause
#include "measure.h"

#include <chrono>
#include <cstring>

#include <ATen/ops/full.h>

#include "common_start.h"
#include "statistics.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Contenders take turns of a few calls, so that what else the machine does meets all of them.
constexpr int kTurns = 10;

// Calls at the beginning of a turn that do not count: what the contender before has left of caches,
// predictors and clock rates has to go. Of short calls as many as count: a turn of them is over in
// microseconds.
int uncounted(int calls) { return calls >= 50 ? calls : 1; }

std::int64_t largest(const ProcessGroup& group, std::int64_t own) {
  const auto number = at::full({1}, own, at::kLong);
  group.all_reduce(number, ReduceOp::MAX);
  return *number.const_data_ptr<std::int64_t>();
}

double time_once(const Trial& trial, const Sync& sync) {
  trial.rewrite();
  begin_together([&](std::int64_t own) { return largest(sync.group, own); }, sync.by_clock);
  const auto begin = Clock::now();
  trial.run();
  const auto end = Clock::now();
  // Else a rank that is done would rewrite its buffer while others are still timing.
  sync.group.barrier();
  return std::chrono::duration<double>(end - begin).count();
}

void check_once(Contender& contender, const Sync& sync) {
  contender.trial.spoil();
  time_once(contender.trial, sync);
  contender.wrong += contender.trial.wrong();
}

std::string as_bytes(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

}  // namespace

void time_in_turns(std::vector<Contender>& contenders, const Sync& sync, const Plan& plan) {
  for (auto& contender : contenders) {
    if (plan.check) check_once(contender, sync);
    for (int i = 0; i < plan.warmup; ++i) time_once(contender.trial, sync);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    const int calls = plan.iterations * (turn + 1) / kTurns - plan.iterations * turn / kTurns;
    for (auto& contender : contenders) {
      for (int i = 0; calls > 0 && i < uncounted(calls); ++i) time_once(contender.trial, sync);
      for (int i = 0; i < calls; ++i) contender.spans.push_back(time_once(contender.trial, sync));
    }
  }
  for (auto& contender : contenders) {
    if (plan.check) check_once(contender, sync);
  }
}

std::vector<double> slowest_spans(const Contender& contender, const ProcessGroup& group) {
  std::vector<std::vector<double>> spans;
  for (const auto& bytes : group.all_gather_object(as_bytes(contender.spans))) {
    std::memcpy(spans.emplace_back(bytes.size() / sizeof(double)).data(), bytes.data(), bytes.size());
  }
  return slowest(spans);
}

std::int64_t all_wrong(const Contender& contender, const ProcessGroup& group) {
  std::int64_t all = 0;
  for (const auto& one : group.all_gather_object(std::to_string(contender.wrong))) all += std::stoll(one);
  return all;
}

}  // namespace lockstep::bench
