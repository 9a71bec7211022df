// SPDX-License-Identifier: BSD-3-Clause
// What it costs that a run can be seen from outside. Each part of a step that publishes something is timed alone; beside it
// two ranks train 200 small linear layers with the recorder and without it, in alternating slices within one process, because
// two processes differ by more than the recorder costs. Also the time that report() takes.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/rank_progress.h"
#include "comm/group_state.h"
#include "node/flight_recorder.h"
#include "training_step.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  int rounds = 10;
  int steps = 20;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The median of the rounds' means.
template <typename Call>
double nanoseconds_of(const Call& call, int rounds) {
  constexpr int kCalls = 10'000;
  std::vector<double> nanoseconds;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) call(i);
    nanoseconds.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
  }
  return median(nanoseconds);
}

double nanoseconds_of_report(std::string_view name, int rounds) {
  return nanoseconds_of([name](int call) { lockstep::report({{name, static_cast<double>(call)}}); }, rounds);
}

// What a step with a loader and DistributedDataParallel publishes of its phases.
double nanoseconds_of_phases(int rounds) {
  using lockstep::Phase;
  const auto progress = lockstep::current_progress();
  std::uint64_t steps = 0;
  const auto step = [&](int) {
    for (const auto phase : {Phase::data, Phase::other, Phase::forward, Phase::backward, Phase::communication,
                             Phase::communication, Phase::communication, Phase::optimizer})
      lockstep::enter_phase(*progress, phase);
    lockstep::count_step(*progress, ++steps);
  };
  return nanoseconds_of(step, rounds);
}

// The record of a call that is waited for, from its start to its end.
double nanoseconds_of_call(int rounds) {
  using lockstep::node::FlightRecorder;
  const auto status = std::make_unique<lockstep::node::RankStatus>();
  FlightRecorder recorder(status.get());
  const std::vector<std::int64_t> shape{262'144};
  const lockstep::node::CallDraft draft{.kind = lockstep::CallKind::all_reduce,
                                        .dtype = c10::ScalarType::Float,
                                        .shape = shape,
                                        .op = lockstep::ReduceOp::SUM,
                                        .where = std::source_location::current(),
                                        .contents = "gradients of bucket",
                                        .index = 1};
  const auto call = [&](int) {
    std::uint64_t number = 0;
    {
      FlightRecorder::RecorderLock lock(recorder);
      number = lock.begin(draft);
      lock.note(number, draft);
    }
    FlightRecorder::RecorderLock(recorder).await(number);
    FlightRecorder::RecorderLock(recorder).complete(number);
  };
  return nanoseconds_of(call, rounds);
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// 200 small linear layers, whose group publishes its calls or does not.
class Training {
 public:
  Training(const lockstep::ProcessGroup& group, bool is_seen)
      : is_seen_(is_seen),
        ddp_(net_, {.process_group = group}),
        optimizer_(ddp_->parameters(), lockstep::bench::kRate) {
    if (!is_seen) lockstep::comm::state_of(group).log().detach_status();
  }

  // Microseconds of processor time of a step.
  double run(int steps) {
    auto& progress = *lockstep::current_progress();
    is_seen_ ? lockstep::claim_phases(progress) : progress.trainer.store(0);
    const double begin = processor_seconds();
    for (int step = 0; step < steps; ++step) {
      optimizer_.zero_grad();
      ddp_->forward(input_).pow(2).mean().backward();
      optimizer_.step();
    }
    return 1e6 * (processor_seconds() - begin) / steps;
  }

  std::size_t buckets() const { return ddp_->buckets().size(); }

 private:
  bool is_seen_;
  lockstep::bench::Chain net_{};
  lockstep::DistributedDataParallel<lockstep::bench::Chain> ddp_;
  torch::optim::SGD optimizer_;
  at::Tensor input_ = torch::randn({8, 32});
};

nlohmann::json measure(const Flags& flags) {
  const auto context = lockstep::init({.backend = "shm"});
  const std::vector<int> ranks{0, 1};
  if (context.world_size() != 2) throw std::runtime_error("start it with two ranks");
  Training with(lockstep::new_group(ranks), true);
  Training without(lockstep::new_group(ranks), false);
  std::vector<double> seen;
  std::vector<double> unseen;
  for (int round = -1; round < flags.rounds; ++round) {
    // The first side alternates, so that caches and clock rates favour neither.
    if (round % 2 == 0) seen.push_back(with.run(flags.steps));
    unseen.push_back(without.run(flags.steps));
    if (round % 2 != 0) seen.push_back(with.run(flags.steps));
    if (round < 0) seen.clear(), unseen.clear();  // warm-up
  }
  if (context.rank() != 0) return {};
  lockstep::report({{"loss", 0}});
  for (int other = 1; other < 32; ++other) lockstep::report({{"metric" + std::to_string(other), 0}});
  return {{"buckets", with.buckets()},
          {"microseconds_with", seen},
          {"microseconds_without", unseen},
          {"nanoseconds_of_phases", nanoseconds_of_phases(flags.rounds)},
          {"nanoseconds_of_call", nanoseconds_of_call(flags.rounds)},
          {"nanoseconds_of_report", nanoseconds_of_report("loss", flags.rounds)},
          {"nanoseconds_of_report_of_the_last_name", nanoseconds_of_report("metric31", flags.rounds)}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures what it costs that a run can be seen from outside, on two ranks; prints JSON on rank 0");
  Flags flags;
  app.add_option("--rounds", flags.rounds, "Slices of each side")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "Steps per slice")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const auto measured = measure(flags);
    if (!measured.empty()) std::cout << measured << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "recorder: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
