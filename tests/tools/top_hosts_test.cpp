// SPDX-License-Identifier: BSD-3-Clause
// `lockstep top --hosts` on the ranks of two launchers, which know nothing of it. LOCKSTEP_HOST_ID makes two hosts of one.
#include <csignal>
#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/rank_progress.h"
#include "support/launcher_process.h"
#include "support/ranks.h"
#include "tool_program.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const testing::Scenario steps_on_hosts("top: makes steps on two hosts until it is stopped", [] {
  const auto context = init({.backend = "hierarchical"});
  claim_phases(*current_progress());
  auto x = torch::ones({256});
  for (std::uint64_t step = 1;; ++step) {
    {
      const PhaseScope phase(Phase::communication);
      context.group().all_reduce(x);
    }
    count_step(*current_progress(), step);
    std::this_thread::sleep_for(1ms);
  }
});

class TopOfHosts : public testing::ToolProgram {
 protected:
  TopOfHosts() : ToolProgram("top") {}

  // What a launcher shows; a value without ranks until the nodes have met.
  Json look(const testing::LauncherProcess& launcher) const {
    const auto result = run({std::to_string(launcher.pid()), "--once", "--json", "--hosts"});
    return result.out.empty() ? Json{{"ranks", Json::array()}, {"error", result.err}}
                              : Json::parse(result.out);
  }

  Json look_until(const testing::LauncherProcess& launcher,
                  const std::function<bool(const Json&)>& fits) const {
    const Deadline deadline(40s);
    Json seen = look(launcher);
    while (!fits(seen) && !deadline.expired()) seen = look(launcher);
    EXPECT_TRUE(fits(seen)) << seen.dump(2);
    return seen;
  }
};

std::vector<std::string> node_words(int node, const std::string& port) {
  return {"run",
          "--nnodes",
          "2",
          "--node-rank",
          std::to_string(node),
          "--nproc-per-node",
          "2",
          "--rdzv-id",
          "job",
          "--master-addr",
          "127.0.0.1",
          "--master-port",
          port,
          "--",
          std::filesystem::read_symlink("/proc/self/exe").string()};
}

testing::LauncherProcess::Options node_options(int node) {
  return {.env = {{testing::kScenarioVariable, steps_on_hosts.name()},
                  {"LOCKSTEP_HOST_ID", std::to_string(node)},
                  {"GLOO_SOCKET_IFNAME", "lo"},
                  {"LOCKSTEP_SECRET", "the secret of a test"}},
          .output = testing::Output::one_pipe};
}

bool all_make_steps(const Json& seen) {
  return seen["ranks"].size() == 4 && std::ranges::all_of(seen["ranks"], [](const Json& rank) {
           return !rank["progress"].is_null() && rank["progress"]["steps"] > 0;
         });
}

TEST_F(TopOfHosts, ShowsTheRanksOfAllAndWhoDoesNotAnswer) {
  const auto port = testing::free_port();
  testing::LauncherProcess first(node_words(0, port), node_options(0));
  testing::LauncherProcess second(node_words(1, port), node_options(1));

  const auto whole = look_until(first, all_make_steps);
  ASSERT_EQ(whole["ranks"].size(), 4U) << first.out() << second.out();
  ASSERT_EQ(whole["hosts"].size(), 2U);
  EXPECT_EQ(whole["run"], "job");
  EXPECT_EQ(whole["hosts"][0], (Json{{"name", host_name()}, {"problem", ""}}));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(whole["ranks"][rank]["rank"], rank);
    EXPECT_EQ(whole["ranks"][rank]["host"], whole["hosts"][rank / 2]["name"]);
    EXPECT_GT(whole["figures"]["ranks"][rank]["resident"], 1 << 20);
  }
  EXPECT_TRUE(whole["figures"]["bytes_per_second"].contains("shm")) << whole["figures"].dump();

  const int stopped = whole["ranks"][3]["pid"];
  ::kill(stopped, SIGSTOP);
  const auto judged = look_until(first, [](const Json& seen) {
    return seen.contains("verdict") && seen["verdict"]["cause"] == "stopped";
  });
  EXPECT_EQ(judged["verdict"]["ranks"], Json({3}));
  EXPECT_THAT(judged["verdict"]["text"].get<std::string>(),
              HasSubstr("rank 3 (pid " + std::to_string(stopped) + " on " +
                        whole["hosts"][1]["name"].get<std::string>() + ")"));
  // On a busy machine a launcher may answer too late.
  const auto shown = AllOf(HasSubstr("run job on 2 hosts: 4 ranks"), HasSubstr("STOPPED"));
  const Deadline deadline(40s);
  auto text = run({std::to_string(first.pid()), "--once", "--hosts"});
  while (!::testing::Matches(shown)(text.out) && !deadline.expired())
    text = run({std::to_string(first.pid()), "--once", "--hosts"});
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, shown);
  ::kill(stopped, SIGCONT);

#ifdef LOCKSTEP_WITH_NCURSES
  testing::LauncherProcess screen({"top", std::to_string(first.pid()), "--hosts", "--interval", "0.1"},
                                  {.env = {{"TERM", "xterm"}}, .output = testing::Output::terminal});
  screen.wait_for("HOST");
#endif
  second.send(SIGSTOP);
  const auto half = look_until(first, [](const Json& seen) {
    return seen["hosts"].size() == 2 && seen["hosts"][0]["problem"] == "" && seen["ranks"].size() == 2;
  });
#ifdef LOCKSTEP_WITH_NCURSES
  screen.wait_for("seen:");
  screen.type("q");
  EXPECT_EQ(screen.finish(), 0) << screen.out();
#endif
  second.send(SIGCONT);
  ASSERT_EQ(half["hosts"].size(), 2U) << half.dump(2);
  EXPECT_EQ(half["hosts"][0]["problem"], "");
  EXPECT_THAT(half["hosts"][1]["problem"].get<std::string>(), HasSubstr("did not answer within 2 s"));
  EXPECT_EQ(half["ranks"].size(), 2U);

  first.send(SIGTERM);
  EXPECT_EQ(first.finish(), 128 + SIGTERM) << first.out();
  EXPECT_NE(second.finish(), 0) << second.out();
}

}  // namespace
}  // namespace lockstep
