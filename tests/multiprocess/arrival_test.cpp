// SPDX-License-Identifier: BSD-3-Clause
// The ways in which ranks find each other.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "base/deadline.h"
#include "base/env.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

int own_rank() { return static_cast<int>(*Env().get_int("TEST_RANK")); }
int own_world() { return static_cast<int>(*Env().get_int("TEST_WORLD")); }

// An environment in which only the test's own variables tell who is who.
testing::RunOptions unnamed(int world_size, std::map<std::string, std::string> env) {
  testing::RunOptions options{.world_size = world_size, .env = std::move(env)};
  for (const auto* name :
       {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) {
    options.env[name] = "";
  }
  options.env["TEST_WORLD"] = std::to_string(world_size);
  for (int rank = 0; rank < world_size; ++rank) options.rank_env[rank]["TEST_RANK"] = std::to_string(rank);
  return options;
}

void expect_whole(const Context& context, int rank, int size) {
  EXPECT_EQ(context.rank(), rank);
  EXPECT_EQ(context.world_size(), size);
  EXPECT_EQ(context.local_rank(), rank) << "counted from where the ranks run";
  EXPECT_EQ(context.local_world_size(), size);
  EXPECT_EQ(current_world().rank, rank);
  auto x = torch::full({1}, rank + 1.0F);
  context.group().all_reduce(x);
  EXPECT_EQ(x.item<float>(), static_cast<float>(size * (size + 1)) / 2);
}

const testing::Scenario over_tcp("over tcp", [] {
  const auto port = *Env().get("MASTER_PORT");
  const InitOptions options{
      .init_method = "tcp://127.0.0.1:" + port, .world_size = own_world(), .rank = own_rank()};
  expect_whole(init(options), own_rank(), own_world());
});
TEST(Arrival, Tcp) { testing::expect_all_passed(testing::run_ranks(over_tcp, unnamed(3, {}))); }

const testing::Scenario over_tcp_query("over tcp with a query", [] {
  const auto method = "tcp://localhost:" + *Env().get("MASTER_PORT") +
                      "?world_size=" + *Env().get("TEST_WORLD") + "&rank=" + *Env().get("TEST_RANK");
  expect_whole(init({.init_method = method}), own_rank(), own_world());
});
TEST(Arrival, TcpWithAQuery) {
  testing::expect_all_passed(testing::run_ranks(over_tcp_query, unnamed(2, {})));
}

const testing::Scenario by_file("by file", [] {
  const InitOptions options{
      .init_method = "file://" + *Env().get("TEST_FILE"), .world_size = own_world(), .rank = own_rank()};
  for (int run = 0; run < 2; ++run) expect_whole(init(options), own_rank(), own_world());
});

TEST(Arrival, FileIsRemovedAfterwards) {
  const testing::TempFolder folder;
  testing::expect_all_passed(
      testing::run_ranks(by_file, unnamed(3, {{"TEST_FILE", folder.file("meeting")}})));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Arrival, IgnoresTheFileOfAKilledRun) {
  const testing::TempFolder folder;
  const auto path = folder.file("meeting");
  // A run of three ranks, of which one never arrives: the others are killed while they wait.
  auto options = unnamed(3, {{"TEST_FILE", path}});
  options.absent = {2};
  options.while_running = [&](const std::vector<int>& pids) {
    const Deadline deadline(std::chrono::seconds(30));
    while (!(fs::exists(path + ".rank0") && fs::exists(path + ".rank1")) && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const int pid : pids) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
  };
  const auto killed = testing::run_ranks(by_file, options);
  EXPECT_EQ(killed[0].signal, SIGKILL);
  ASSERT_TRUE(fs::exists(path + ".rank1"));
  std::ofstream(path + ".rank2") << "an old ticket";
  std::ofstream(path + ".run") << "nonsense\n1\nof an old run\n\n";
  std::ofstream(path) << "whatever PyTorch's FileStore leaves";
  testing::expect_all_passed(testing::run_ranks(by_file, unnamed(3, {{"TEST_FILE", path}})));
  EXPECT_FALSE(fs::exists(path + ".run"));
  EXPECT_FALSE(fs::exists(path + ".rank2"));
}

const testing::Scenario by_own_store("by a user-provided store", [] {
  const auto store = c10::make_intrusive<c10d::FileStore>(*Env().get("TEST_FILE"), own_world());
  for (int run = 0; run < 2; ++run) {
    expect_whole(init({.world_size = own_world(), .rank = own_rank(), .store = store}), own_rank(),
                 own_world());
  }
});
TEST(Arrival, UserProvidedStore) {
  const testing::TempFolder folder;
  testing::expect_all_passed(
      testing::run_ranks(by_own_store, unnamed(2, {{"TEST_FILE", folder.file("store")}})));
}

const testing::Scenario again("leave and join again", [] {
  for (int run = 0; run < 3; ++run) {
    const auto context = init();
    context.barrier();
  }
});
TEST(Arrival, LeaveAndJoinAgain) { testing::expect_all_passed(testing::run_ranks(again, {.world_size = 3})); }

const testing::Scenario slurm_like("in SLURM's environment",
                                   [] { expect_whole(init(), own_rank(), own_world()); });
TEST(Arrival, SlurmsEnvironment) {
  auto options = unnamed(2, {{"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NODELIST", "here"}});
  for (int rank = 0; rank < 2; ++rank) {
    options.rank_env[rank]["SLURM_PROCID"] = std::to_string(rank);
    options.rank_env[rank]["SLURM_LOCALID"] = std::to_string(rank);
  }
  testing::expect_all_passed(testing::run_ranks(slurm_like, options));
}

}  // namespace
}  // namespace lockstep
