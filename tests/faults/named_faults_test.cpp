// SPDX-License-Identifier: BSD-3-Clause
// Four ranks train, a random one gets a fault at a random moment, and one who looks from outside names rank and cause.
// LOCKSTEP_FAULT_ROUNDS=500 for 25 rounds of each fault.
#include <algorithm>
#include <array>
#include <csignal>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/rank_progress.h"
#include "harmed_training.h"
#include "observe/find_runs.h"
#include "observe/verdict.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using observe::Cause;
using observe::Run;
using observe::Verdict;
using testing::Fault;
using testing::SharedOrders;

constexpr std::array kFaultNames{"none",    "dead",    "stopped",   "stuck",  "mismatch", "slow",
                                 "starved", "blocked", "slow link", "memory", "deadlock"};

// What was seen of one fault in all rounds.
struct Tally {
  int rounds = 0;
  int right = 0;
  double worst = 0;  // seconds from the moment at which it is visible
};

PhaseTimes spent_in(const observe::Progress& progress, std::size_t step) {
  PhaseTimes times = progress.last[step].spent;
  for (std::size_t i = 0; i < times.size(); ++i) times.at(i) -= progress.last[step - 1].spent.at(i);
  return times;
}

// When the third step since then ended in which the rank has spent so long in the phase.
std::int64_t end_of_third(const observe::Rank& rank, Phase phase, std::int64_t since) {
  int count = 0;
  const auto& last = rank.progress->last;
  for (std::size_t i = 1; i < last.size(); ++i) {
    const auto time = spent_in(*rank.progress, i).at(static_cast<std::size_t>(phase));
    if (last[i].ended_at > since && time > 40'000'000 && ++count == 3) return last[i].ended_at;
  }
  return since;
}

// When the calls that have not ended were made: the first and the last of them.
std::pair<std::int64_t, std::int64_t> issues_of_waits(const Run& run) {
  auto first = run.taken_at;
  std::int64_t last = 0;
  for (const auto& rank : run.ranks) {
    for (const auto& member : rank.groups) {
      const auto* const call = member.unfinished();
      if (call == nullptr) continue;
      first = std::min(first, call->issued_at);
      last = std::max(last, call->issued_at);
    }
  }
  return {first, last};
}

constexpr std::int64_t kSecond = 1'000'000'000;

struct Injection {
  Fault fault;
  int victim;
  std::int64_t at;

  // The definitions of docs/observe.md.
  std::int64_t visible_at(const Run& run) const {
    const auto& rank = run.ranks.at(static_cast<std::size_t>(victim));
    const auto [first, last] = issues_of_waits(run);
    switch (fault) {
      case Fault::stuck:
      case Fault::blocked:
        return first + kSecond;
      case Fault::deadlock:
        return std::max(first + kSecond, last);
      case Fault::mismatch:
        return last;
      case Fault::slow:
        return end_of_third(rank, Phase::forward, at);
      case Fault::starved:
        return end_of_third(rank, Phase::data, at);
      case Fault::slow_link:
        return end_of_third(rank, Phase::communication, at);
      case Fault::memory:
        return rank.progress->memory.back().at;
      default:
        return at;
    }
  }

  bool is_named_by(const Verdict& verdict) const {
    static const std::map<Fault, Cause> kCauses{
        {Fault::dead, Cause::dead},       {Fault::stopped, Cause::stopped},
        {Fault::stuck, Cause::missing},   {Fault::mismatch, Cause::mismatch},
        {Fault::slow, Cause::slow},       {Fault::starved, Cause::starved},
        {Fault::blocked, Cause::starved}, {Fault::slow_link, Cause::slow_link},
        {Fault::memory, Cause::memory},   {Fault::deadlock, Cause::deadlock}};
    if (verdict.cause != kCauses.at(fault)) return false;
    if (fault == Fault::slow_link) return verdict.ranks.size() == 4;
    const bool is_named = std::ranges::find(verdict.ranks, victim) != verdict.ranks.end();
    return is_named && (verdict.ranks.size() == 1 || fault == Fault::deadlock);
  }
};

// One run of the ranks, which gets faults one after the other.
class Patient {
 public:
  Patient(std::vector<int> pids, SharedOrders& orders, std::mt19937& random, std::map<Fault, Tally>& tallies)
      : pids_(std::move(pids)), orders_(orders), random_(random), tallies_(tallies) {}

  void suffer(const std::vector<Fault>& faults) {
    for (const auto fault : faults) {
      if (!wait_until_well()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(random_() % 300));
      suffer(fault);
      orders_.take_back();
    }
  }

 private:
  struct Look {
    Run run;
    Verdict verdict;
  };

  std::optional<Look> look() const {
    std::this_thread::sleep_for(30ms);
    try {
      auto run = observe::find_run(std::to_string(pids_.at(survivor_))).read();
      auto verdict = observe::judge(run);
      return Look{std::move(run), std::move(verdict)};
    } catch (const Error&) {
      return std::nullopt;  // the ranks have not met yet
    }
  }

  static bool is_well(const Look& look) {
    return look.verdict.cause == Cause::none && look.run.ranks.size() == 4 &&
           std::ranges::all_of(look.run.ranks,
                               [](const auto& rank) { return rank.progress && rank.progress->steps > 20; });
  }

  bool wait_until_well() const {
    const Deadline deadline(120s);
    std::optional<Look> last;
    while (!deadline.expired()) {
      last = look();
      if (last && is_well(*last)) return true;
    }
    ADD_FAILURE() << "the ranks do not train: " << (last ? last->verdict.text : "they were not found");
    return false;
  }

  void inject(const Injection& injection) {
    const int pid = pids_.at(static_cast<std::size_t>(injection.victim));
    if (injection.fault == Fault::dead) {
      ::kill(pid, SIGKILL);
    } else if (injection.fault == Fault::stopped) {
      ::kill(pid, SIGSTOP);
    } else {
      const auto now = look();
      orders_.give(injection.fault, injection.victim, now ? now->run.ranks.front().progress->steps + 10 : 0);
    }
  }

  void suffer(Fault fault) {
    const Injection injection{fault, static_cast<int>(random_() % 4), steady_now()};
    survivor_ = injection.victim == 0 ? 1 : 0;
    inject(injection);
    auto& tally = tallies_[fault];
    ++tally.rounds;
    const Deadline deadline(20s);
    while (!deadline.expired()) {
      const auto seen = look();
      if (!seen || seen->verdict.cause == Cause::none) continue;
      if (!injection.is_named_by(seen->verdict)) {
        std::cout << kFaultNames.at(static_cast<std::size_t>(fault)) << " of rank " << injection.victim
                  << " was taken for " << name_of(seen->verdict.cause) << ": " << seen->verdict.text
                  << std::endl;
        break;
      }
      ++tally.right;
      const auto delay = static_cast<double>(seen->run.taken_at - injection.visible_at(seen->run)) / kSecond;
      tally.worst = std::max(tally.worst, delay);
      break;
    }
    if (deadline.expired())
      std::cout << kFaultNames.at(static_cast<std::size_t>(fault)) << " of rank " << injection.victim
                << " was not named" << std::endl;
    if (fault == Fault::stopped) ::kill(pids_.at(static_cast<std::size_t>(injection.victim)), SIGCONT);
  }

  std::vector<int> pids_;
  std::size_t survivor_ = 0;  // by which the run is found
  SharedOrders& orders_;
  std::mt19937& random_;
  std::map<Fault, Tally>& tallies_;
};

TEST(NamedFaults, RankAndCauseAreRight) {
  const auto rounds = std::max<std::int64_t>(1, Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(0) / 20);
  std::mt19937 random(std::random_device{}());
  std::map<Fault, Tally> tallies;
  const auto suffer = [&](const char* backend, const std::vector<Fault>& faults) {
    SharedOrders orders;
    testing::run_ranks(testing::harmed_training,
                       {.world_size = 4,
                        .env = {{"TEST_ORDERS", orders.path()}, {"TEST_BACKEND", backend}},
                        .while_running = [&](const std::vector<int>& pids) {
                          Patient(pids, orders, random, tallies).suffer(faults);
                          for (const int pid : pids) ::kill(pid, SIGKILL);
                        }});
  };
  for (std::int64_t round = 0; round < rounds; ++round) {
    suffer("shm", {Fault::stopped, Fault::slow, Fault::blocked, Fault::dead});
    suffer("shm", {Fault::memory, Fault::stuck, Fault::mismatch});
    suffer("gloo", {Fault::starved, Fault::slow_link, Fault::deadlock});
  }
  int all = 0;
  int wrong = 0;
  std::cout << "| fault | rounds | right | worst time |\n|---|---|---|---|\n";
  for (const auto& [fault, tally] : tallies) {
    std::cout << fmt::format("| {} | {} | {} | {:.2f} s |\n", kFaultNames.at(static_cast<std::size_t>(fault)),
                             tally.rounds, tally.right, tally.worst);
    all += tally.rounds;
    wrong += tally.rounds - tally.right;
  }
  std::cout << std::flush;
  EXPECT_LE(wrong, std::max(1, all / 50));
}

}  // namespace
}  // namespace lockstep
