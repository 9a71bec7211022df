// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "run_command.h"
#include "run_report.h"
#include "support/error_of.h"

namespace lockstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Words = std::vector<std::string>;

// `words` stand after "lockstep run".
RunArguments parse(Words words, const Words& rest = {}) {
  CLI::App app;
  RunArguments arguments;
  const auto& run = add_run_options(app, arguments);
  words.insert(words.begin(), "run");
  std::ranges::reverse(words);
  app.parse(words);
  arguments.command = program_words(run, rest);
  return arguments;
}

std::string complaint(const RunArguments& arguments) {
  return testing::error_of<ArgumentError>([&] { launch_options(arguments, {.cores = 4, .gpus = 0}); });
}

TEST(RunCommandLine, AcceptsBothSpellings) {
  for (const Words& words :
       {Words{"--nproc-per-node", "3", "--node-rank=1", "--master-addr", "a", "--master-port", "5"},
        Words{"--nproc_per_node=3", "--node_rank", "1", "--master_addr=a", "--master_port=5"}}) {
    const auto arguments = parse(words);
    EXPECT_EQ(arguments.nproc_per_node, "3");
    EXPECT_EQ(arguments.node_rank, 1);
    EXPECT_EQ(arguments.master_addr, "a");
    EXPECT_EQ(arguments.master_port, 5);
  }
}

TEST(RunCommandLine, GivesEachHostAPageOfItsOwn) {
  EXPECT_EQ(report_file(parse({"--report", "a/page.html", "./train"})), "a/page.html");
  EXPECT_EQ(report_file(parse({"--host-index", "2", "--report", "a/page.html", "./train"})),
            "a/page-node2.html");
}

TEST(RunCommandLine, PassesArgumentsAfterTheProgramToTheProgram) {
  const auto arguments =
      parse({"--nproc-per-node", "2", "./train", "--nproc-per-node", "9", "--help", "run"});
  EXPECT_EQ(arguments.nproc_per_node, "2");
  EXPECT_THAT(arguments.command, ElementsAre("./train", "--nproc-per-node", "9", "--help", "run"));
}

TEST(RunCommandLine, EndsItsOptionsAtTheFirstDashesOnly) {
  EXPECT_THAT(parse({"--standalone"}, {"--", "-odd-name", "--", "x"}).command,
              ElementsAre("-odd-name", "--", "x"));
  EXPECT_THAT(parse({"./train", "a"}, {"--", "b"}).command, ElementsAre("./train", "a", "--", "b"));
  EXPECT_THAT(parse({}, {"--"}).command, IsEmpty());
}

TEST(RunCommandLine, RejectsAnUnknownOption) {
  EXPECT_THROW(parse({"--nproc-per-nod", "2", "./train"}), ArgumentError);
}

TEST(RunCommandLine, IsConvertedToLaunchOptions) {
  const auto options = launch_options({.nproc_per_node = "cpu",
                                       .nnodes = "2:2",
                                       .node_rank = 1,
                                       .master_addr = "node0",
                                       .master_port = 29501,
                                       .grace_period = 0.25,
                                       .command = {"./train"}},
                                      {.cores = 4, .gpus = 0});
  EXPECT_EQ(options.nproc_per_node, 4);
  ASSERT_TRUE(options.nodes);
  EXPECT_EQ(options.nodes->min_nodes, 2);
  EXPECT_EQ(options.nodes->node_rank, 1);
  EXPECT_EQ(options.nodes->endpoint.host, "node0");
  EXPECT_EQ(options.nodes->endpoint.port, 29501);
  EXPECT_EQ(options.master_addr, "node0");
  EXPECT_EQ(options.run_id, "none");
  EXPECT_EQ(options.grace_period, std::chrono::milliseconds(250));
}

Env in_pod(const std::string& index) {
  return Env(std::map<std::string, std::string>{{"JOB_COMPLETION_INDEX", index}});
}

TEST(RunCommandLine, TakesTheIndexOfAPodForTheNodeRank) {
  const RunArguments arguments{.nnodes = "3", .master_addr = "train-0.train", .command = {"x"}};
  const auto pod = in_pod("2");
  EXPECT_EQ(launch_options(arguments, {}, pod).nodes->node_rank, 2);
  auto other = arguments;
  other.node_rank = 1;
  EXPECT_EQ(launch_options(other, {}, pod).nodes->node_rank, 1);
  other.nnodes = "1";
  other.node_rank.reset();
  EXPECT_FALSE(launch_options(other, {}, pod).nodes);
  EXPECT_THROW(launch_options(arguments, {}, in_pod("3")), ArgumentError);
  EXPECT_THROW(launch_options(arguments, {}, in_pod("x")), ArgumentError);
}

// Each line "command: [...]" of the manifests is JSON.
TEST(RunCommandLine, UnderstandsTheManifestsForKubernetes) {
  const auto pod = in_pod("1");
  int commands = 0;
  for (const auto* const name : {"indexed-job.yaml", "pytorchjob.yaml"}) {
    std::ifstream file(std::string(LOCKSTEP_MANIFESTS "/") + name);
    for (std::string line; std::getline(file, line);) {
      const auto at = line.find("command: [");
      if (at == std::string::npos) continue;
      auto words = nlohmann::json::parse(line.substr(at + 9)).get<Words>();
      ASSERT_THAT(words, ::testing::SizeIs(::testing::Gt(2)));
      EXPECT_EQ(words[0] + " " + words[1], "lockstep run");
      words.erase(words.begin(), words.begin() + 2);
      const auto options = launch_options(parse(words), {.cores = 4, .gpus = 0}, pod);
      EXPECT_EQ(options.command.front(), "/app/train") << name;
      ++commands;
    }
  }
  EXPECT_EQ(commands, 3);
}

TEST(RunCommandLine, GivesAStandaloneRunItsOwnId) {
  const RunArguments arguments{.standalone = true, .command = {"x"}};
  EXPECT_NE(launch_options(arguments, {}).run_id, launch_options(arguments, {}).run_id);
}

TEST(RunCommandLine, ReportsInvalidOptions) {
  const Words x{"x"};
  EXPECT_EQ(complaint({.command = x}), "");
  EXPECT_THAT(complaint({}), HasSubstr("no program"));
  EXPECT_THAT(complaint({.nproc_per_node = "abc", .command = x}), HasSubstr("\"abc\""));
  EXPECT_THAT(complaint({.nnodes = "1:4", .command = x}),
              HasSubstr("a range, which needs rdzv-backend c10d"));
  EXPECT_THAT(complaint({.nnodes = "0", .command = x}), HasSubstr("--nnodes 0"));
  EXPECT_THAT(complaint({.nnodes = "3:2", .command = x}), HasSubstr("--nnodes 3:2"));
  EXPECT_THAT(complaint({.nnodes = "2", .node_rank = 2, .command = x}), HasSubstr("node-rank is 2"));
  EXPECT_THAT(complaint({.node_rank = 1, .command = x}), HasSubstr("--nnodes"));
  EXPECT_THAT(complaint({.rdzv_backend = "etcd", .command = x}), HasSubstr("--rdzv-backend etcd"));
  EXPECT_THAT(complaint({.rdzv_conf = "read_timeout=3", .command = x}), HasSubstr("read_timeout"));
  EXPECT_THAT(complaint({.max_restarts = -1, .command = x}),
              HasSubstr("max-restarts is -1; it must be 0 or more"));
  EXPECT_THAT(complaint({.max_restarts = 1, .on_loss = "ignore", .command = x}),
              HasSubstr("--on-loss ignore: use restart, replace, oversubscribe, shrink"));
  EXPECT_EQ(complaint({.max_restarts = 1, .on_loss = "replace", .command = x}), "");
  EXPECT_THAT(complaint({.on_loss = "replace", .command = x}), HasSubstr("add --max-restarts N"));
  EXPECT_EQ(complaint({.nnodes = "2", .max_restarts = 1, .on_loss = "replace", .command = x}), "");
  EXPECT_EQ(
      complaint({.nnodes = "2", .max_restarts = 1, .on_loss = "oversubscribe", .spares = 1, .command = x}),
      "");
  EXPECT_THAT(complaint({.max_restarts = 1, .on_loss = "oversubscribe", .command = x}),
              HasSubstr("--on-loss oversubscribe needs several hosts"));
  EXPECT_THAT(complaint({.nnodes = "2", .on_loss = "oversubscribe", .command = x}),
              HasSubstr("--on-loss oversubscribe needs restarts: add --max-restarts N"));
  EXPECT_THAT(complaint({.nnodes = "2",
                         .rdzv_backend = "c10d",
                         .rdzv_endpoint = "a",
                         .max_restarts = 1,
                         .on_loss = "oversubscribe",
                         .command = x}),
              HasSubstr("--on-loss oversubscribe needs nodes with numbers"));
  EXPECT_THAT(complaint({.hosts = "a,b", .max_restarts = 1, .on_loss = "oversubscribe", .command = x}),
              HasSubstr("start a launcher on each host with --nnodes"));
  for (const char* text : {"1", "1:", "1:2", "0:2:r", "1:2,x:r", "x:2:r"}) {
    EXPECT_THAT(complaint({.nnodes = "2", .adopt = text, .command = x}),
                HasSubstr(fmt::format("--adopt {}", text)))
        << text;
  }
  EXPECT_THAT(complaint({.adopt = "1:2:r", .command = x}), HasSubstr("--adopt: the run has one node"));
  EXPECT_THAT(complaint({.nnodes = "1:2",
                         .rdzv_backend = "c10d",
                         .rdzv_endpoint = "a",
                         .max_restarts = 1,
                         .on_loss = "replace",
                         .command = x}),
              HasSubstr("--on-loss replace needs a fixed number of nodes, and --nnodes is 1:2"));
  EXPECT_THAT(complaint({.hosts = "a", .max_restarts = 1, .on_loss = "replace", .command = x}),
              HasSubstr("--on-loss replace does not support --hosts"));
  EXPECT_THAT(complaint({.max_restarts = 1, .spares = 1, .command = x}),
              HasSubstr("--spares 1 has no effect without --on-loss replace"));
  EXPECT_EQ(complaint({.max_restarts = 1, .on_loss = "replace", .spares = 1, .command = x}), "");
  EXPECT_THAT(complaint({.max_restarts = 1, .on_loss = "replace", .spares = 2, .command = x}),
              HasSubstr("raise --max-restarts, or lower --spares"));
  EXPECT_THAT(complaint({.max_restarts = 1, .on_loss = "replace", .spares = -1, .command = x}),
              HasSubstr("spares is -1"));
  EXPECT_THAT(
      complaint({.max_restarts = 1, .on_loss = "replace", .spares = 1, .command = {"x", "${local_rank}"}}),
      HasSubstr("--spares excludes"));
  EXPECT_EQ(complaint({.nproc_per_node = "3", .on_loss = "shrink", .min_ranks = 3, .command = x}), "");
  for (const int least : {0, 4}) {
    EXPECT_THAT(complaint({.nproc_per_node = "3", .on_loss = "shrink", .min_ranks = least, .command = x}),
                HasSubstr(fmt::format("--min-ranks is {}; it must be in 1 .. 3", least)));
  }
  EXPECT_THAT(complaint({.nproc_per_node = "3", .min_ranks = 2, .command = x}),
              HasSubstr("--min-ranks 2 has no effect without --on-loss shrink"));
  EXPECT_THAT(complaint({.max_restarts = 1, .on_loss = "shrink", .spares = 1, .command = x}),
              HasSubstr("--spares 1 has no effect without --on-loss replace"));
  EXPECT_THAT(complaint({.nnodes = "2", .on_loss = "shrink", .command = x}),
              HasSubstr("--on-loss shrink is for one host"));
  EXPECT_THAT(complaint({.hosts = "a", .on_loss = "shrink", .command = x}),
              HasSubstr("--on-loss shrink does not support --hosts"));
  EXPECT_EQ(complaint({.progress_timeout = 1, .command = x}), "");
  EXPECT_THAT(complaint({.progress_timeout = 0.5, .command = x}),
              HasSubstr("--progress-timeout 0.5: the seconds must be in 1 .. 604800"));
  EXPECT_THAT(complaint({.nnodes = "2", .progress_timeout = 60, .command = x}),
              HasSubstr("--progress-timeout is for one host"));
  EXPECT_EQ(complaint({.slow_factor = 1.5, .slow_steps = 60, .command = x}), "");
  EXPECT_THAT(complaint({.slow_factor = 1, .command = x}),
              HasSubstr("--slow-factor 1: use a number above 1"));
  EXPECT_THAT(complaint({.slow_factor = 2, .slow_steps = 61, .command = x}),
              HasSubstr("--slow-steps 61: use 3 to 60"));
  EXPECT_THAT(complaint({.slow_steps = 30, .command = x}),
              HasSubstr("--slow-steps has no effect without --slow-factor"));
  EXPECT_THAT(complaint({.on_slow = "replace", .command = x}),
              HasSubstr("--on-slow has no effect without --slow-factor"));
  EXPECT_THAT(complaint({.slow_factor = 2, .on_slow = "kill", .command = x}),
              HasSubstr("--on-slow kill: use report, replace"));
  EXPECT_THAT(complaint({.slow_factor = 2, .on_slow = "replace", .command = x}),
              HasSubstr("--on-slow replace needs --on-loss replace"));
  EXPECT_THAT(complaint({.nnodes = "2", .slow_factor = 2, .command = x}),
              HasSubstr("--slow-factor is for one host"));
  EXPECT_THAT(complaint({.start_method = "thread", .command = x}), HasSubstr("--start-method thread"));
  EXPECT_THAT(complaint({.numa_binding = "node", .command = x}), HasSubstr("--bind"));
  EXPECT_THAT(complaint({.signals_to_handle = "SIGKILL", .command = x}), HasSubstr("SIGKILL"));
  EXPECT_THAT(complaint({.module = true, .no_python = true, .command = x}), HasSubstr("--no-python"));
  EXPECT_THAT(complaint({.use_env = true, .pass_local_rank = true, .command = x}), HasSubstr("--use-env"));
  EXPECT_THAT(complaint({.redirects = "4", .command = x}), HasSubstr("--redirects 4"));
  EXPECT_THAT(complaint({.tee = "1:1", .command = x}), HasSubstr("local rank 1"));
  EXPECT_THAT(complaint({.local_ranks_filter = "a", .command = x}), HasSubstr("--local-ranks-filter a"));
  EXPECT_THAT(complaint({.local_ranks_filter = "1", .command = x}),
              HasSubstr("local-ranks-filter names rank 1"));
  EXPECT_THAT(complaint({.bind = "tight", .command = x}), HasSubstr("--bind tight"));
  EXPECT_THAT(complaint({.memory_allocator = "x", .command = x}), HasSubstr("memory-allocator x"));
  EXPECT_THAT(complaint({.master_port = 70000, .command = x}), HasSubstr("--master-port 70000"));
  EXPECT_THAT(complaint({.nnodes = "2", .standalone = true, .command = x}), HasSubstr("--standalone"));
  EXPECT_THAT(complaint({.grace_period = -1, .command = x}), HasSubstr("--grace-period"));
}

TEST(CommandLine, ExitsWith2WhenInvalid) {
  for (const Words& words :
       {Words{}, Words{"bogus"}, Words{"run"}, Words{"run", "--nproc-per-node"},
        Words{"run", "--nproc-per-node", "0", "true"}, Words{"run", "--bogus", "true"}}) {
    EXPECT_EQ(run(words), kUsageError) << ::testing::PrintToString(words);
  }
}

TEST(CommandLine, PrintsTheVersion) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              ::testing::MatchesRegex("lockstep [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace lockstep::cli
