// SPDX-License-Identifier: BSD-3-Clause
// Random harm to two hosts of two ranks, which have networks of their own: killed ranks, a link that is down
// or slow, a frozen host. Both launchers name a killed rank and its host; otherwise ranks report their call
// at its timeout. The report of every rank names the host at fault. Neither host keeps a process.
// LOCKSTEP_FAULT_ROUNDS=300 for a long run, LOCKSTEP_FAULT_SEED to see one round again.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "base/deadline.h"
#include "base/env.h"
#include "support/launcher_process.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;

constexpr int kRanks = 4;

const Scenario on_two_hosts("faults: calls on two hosts", [] {
  const Env env;
  const auto context = init({.timeout = 60s});
  const auto group = context.new_group({0, 1, 2, 3}, {.timeout = 2s});
  group.barrier();
  std::cout << "pid " << ::getpid() << " of " << context.rank() << std::endl;
  std::mt19937 random(static_cast<unsigned>(*env.get_int("TEST_SEED")));
  while (true) {
    const auto numbers = torch::ones({kRanks * static_cast<std::int64_t>(10 + random() % 100'000)});
    if (random() % 3 == 0) {
      group.reduce_scatter_tensor(torch::empty({numbers.numel() / kRanks}), numbers);
    } else {
      group.all_reduce(numbers);
    }
  }
});

class HostRound {
 public:
  explicit HostRound(unsigned seed)
      : random_(seed),
        victim_(draw(kRanks)),
        nodes_({"run", "--", "unshare", "-Urn", LOCKSTEP_TWO_NODES, LOCKSTEP_PROGRAM,
                fmt::format("{}='{}' exec {}", kScenarioVariable, on_two_hosts.name(),
                            std::filesystem::read_symlink("/proc/self/exe").string()),
                "2", "0"},
               {.env = {{"TEST_SEED", std::to_string(seed)},
                        {"PET_RDZV_CONF", "keep_alive_interval=1,keep_alive_max_attempt=3"},
                        {"OMP_NUM_THREADS", "1"}}}) {}

  // Milliseconds from a kill until no rank of either host lived; nothing for other harm.
  std::optional<double> play() {
    nodes_.wait_for("pid ", kRanks);
    std::this_thread::sleep_for(std::chrono::microseconds(draw(50'000)));
    const std::array harms{&HostRound::kill_rank, &HostRound::cut_link, &HostRound::slow_link,
                           &HostRound::freeze_host};
    const auto harm = static_cast<std::size_t>(draw(harms.size()));
    SCOPED_TRACE(fmt::format("harm {} to rank {}", harm, victim_));
    const auto begin = std::chrono::steady_clock::now();
    (this->*harms[harm])();
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
    nodes_.wait_for_no_family();
    return harm == 0 ? std::optional(passed.count()) : std::nullopt;
  }

 private:
  int draw(std::size_t below) { return static_cast<int>(random_() % below); }
  int host() const { return victim_ / 2; }

  void kill_rank() {
    ::kill(nodes_.rank_pid(victim_), SIGKILL);
    EXPECT_EQ(nodes_.finish(), 137) << nodes_.err();
    const auto report =
        fmt::format("[rank 0] [lockstep] rank {} failed first: it was killed by SIGKILL; pid {} on host ",
                    victim_, nodes_.rank_pid(victim_));
    // Of both launchers.
    EXPECT_EQ(std::ranges::count_if(lines_of(nodes_.err()),
                                    [&](const auto& line) { return line.starts_with(report); }),
              2)
        << nodes_.err();
    for (const int each : {0, 1}) expect_reports_to_name(host(), each);
  }

  // The launchers cannot tell each other, so the ranks of each host report it.
  void cut_link() {
    change_link("ip link set dev {} down");
    EXPECT_EQ(nodes_.finish(), 1) << nodes_.err();
    EXPECT_GT(expect_reports_to_name(1, 0), 0) << nodes_.err();
    EXPECT_GT(expect_reports_to_name(0, 1), 0) << nodes_.err();
  }

  // The first report ends all ranks.
  void slow_link() {
    change_link("tc qdisc add dev {} root tbf rate 50kbit burst 4kb latency 50ms");
    EXPECT_EQ(nodes_.finish(), 1) << nodes_.err();
    EXPECT_GT(expect_reports_to_name(1, 0) + expect_reports_to_name(0, 1), 0) << nodes_.err();
  }

  void freeze_host() {
    const auto frozen = processes_of_host(host());
    const auto others = processes_of_host(1 - host());
    for (const pid_t pid : frozen) ::kill(pid, SIGSTOP);
    wait_for_end_of(others);
    for (const pid_t pid : frozen) ::kill(pid, SIGCONT);
    EXPECT_EQ(nodes_.finish(), 1) << nodes_.err();
    EXPECT_GT(expect_reports_to_name(host(), 1 - host()), 0) << nodes_.err();
    const int first = 2 * (1 - host());
    EXPECT_THAT(text_of(first) + text_of(first + 1),
                ContainsRegex(fmt::format("{} has (not )?acknowledged", host() == 0 ? "left" : "right")));
  }

  std::vector<pid_t> processes_of_host(int host) const {
    const auto network = [](pid_t pid) {
      std::error_code gone;
      return std::filesystem::read_symlink(fmt::format("/proc/{}/ns/net", pid), gone);
    };
    const auto own = network(nodes_.rank_pid(2 * host));
    std::vector<pid_t> found;
    for (const pid_t pid : nodes_.family())
      if (network(pid) == own) found.push_back(pid);
    return found;
  }

  void wait_for_end_of(const std::vector<pid_t>& processes) const {
    const Deadline deadline(20s);
    const auto is_rank = [&](pid_t pid) {
      for (int rank = 0; rank < kRanks; ++rank)
        if (nodes_.rank_pid(rank) == pid) return true;
      return false;
    };
    const auto lives = [&](pid_t pid) {
      return is_rank(pid) && std::ranges::count(nodes_.family(), pid) > 0;
    };
    while (std::ranges::any_of(processes, lives)) {
      ASSERT_FALSE(deadline.expired()) << "the ranks of the other host do not end";
      std::this_thread::sleep_for(10ms);
    }
  }

  void change_link(const char* command) {
    const auto change = fmt::format(fmt::runtime(command), host() == 0 ? "left" : "right");
    LauncherProcess changed({"--preserve-credentials", "-U", "-n", "-t",
                             std::to_string(nodes_.rank_pid(victim_)), "sh", "-c", change},
                            {.program = "/usr/bin/nsenter"});
    ASSERT_EQ(changed.finish(), 0) << changed.err();
  }

  // The number of ranks of this host that have reported an error, each with the rank, the call, its line and
  // the name of the host `at_fault`.
  int expect_reports_to_name(int at_fault, int host) const {
    int reports = 0;
    for (const int rank : {2 * host, 2 * host + 1}) {
      const auto text = text_of(rank);
      const ::testing::Matcher<std::string> is_report = ContainsRegex(
          fmt::format("threw: rank {} of 4 .*lost_hosts_test.cpp:[0-9]+ (did not finish in time|"
                      "failed because another rank is gone)",
                      rank));
      if (!is_report.Matches(text)) continue;
      ++reports;
      // Another rank of the host died if the launcher has ended it after the first report.
      EXPECT_THAT(text,
                  ContainsRegex(fmt::format("(on {0}|{0} has|\\) died)", at_fault == 0 ? "left" : "right")));
    }
    return reports;
  }

  // What a rank has written.
  std::string text_of(int rank) const {
    const ::testing::Matcher<std::string> is_of_rank =
        ContainsRegex(fmt::format("^\\[rank 0\\] \\[[^]]*rank {}\\]", rank));
    std::string text;
    for (const auto& line : lines_of(nodes_.err()))
      if (is_of_rank.Matches(line)) text += line + "\n";
    return text;
  }

  std::mt19937 random_;
  int victim_;
  LauncherProcess nodes_;
};

TEST(LostHosts, AreReportedAndLeaveNothing) {
  const Env env;
  const auto rounds = env.get_int("LOCKSTEP_FAULT_ROUNDS").value_or(2);
  const auto first = env.get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  std::vector<double> delays;
  for (std::int64_t i = 0; i < rounds && !HasFailure(); ++i) {
    SCOPED_TRACE(fmt::format("LOCKSTEP_FAULT_SEED={}", first + i));
    if (const auto delay = HostRound(static_cast<unsigned>(first + i)).play()) delays.push_back(*delay);
  }
  if (delays.empty()) return;
  std::ranges::sort(delays);
  std::cout << rounds << " rounds; from a kill to the end of both hosts: median " << delays[delays.size() / 2]
            << " ms, longest " << delays.back() << " ms" << std::endl;
}

}  // namespace
}  // namespace lockstep::testing
