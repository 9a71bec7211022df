// SPDX-License-Identifier: BSD-3-Clause
// Groups that are formed again: of threads, and of ranks that a launcher has started.
#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/spawn/spawn.h>

#include "base/env.h"
#include "base/host.h"
#include "multiprocess/reconfigure.h"
#include "support/error_of.h"
#include "support/launcher_process.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

// -- threads

std::vector<std::string> handles_of_threads(const Context& context, c10d::Store& store, int number,
                                            int thread) {
  std::vector<std::string> keys, handles;
  for (int i = 0; i < 3; ++i) keys.push_back(fmt::format("{}/{}", number, i));
  store.set(keys.at(static_cast<std::size_t>(thread)), context.group().reconfigure_handle());
  store.wait(keys, 30s);
  for (const auto& key : keys) handles.push_back(store.get_to_str(key));
  return handles;
}

TEST(ReconfigureThreads, PartAndMeetAgain) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  spawn_threads(3,
                [&](Context& context) {
                  const int thread = context.rank();
                  const auto memory = registered(context.group(), 50'000);
                  auto handles = handles_of_threads(context, *store, 1, thread);
                  context.reconfigure(
                      thread == 1
                          ? ReconfigureOptions{.uuid = 1, .handles = std::vector{handles[1]}}
                          : ReconfigureOptions{.uuid = 2, .handles = std::vector{handles[2], handles[0]}});
                  EXPECT_EQ(context.world_size(), thread == 1 ? 1 : 2);
                  expect_sums(context.group(), memory);
                  handles = handles_of_threads(context, *store, 2, thread);
                  std::ranges::reverse(handles);
                  context.reconfigure({.uuid = 3, .handles = handles});
                  EXPECT_EQ(context.rank(), 2 - thread);
                  EXPECT_EQ(get_rank(), 2 - thread);
                  expect_sums(context.group(), memory);
                },
                {.backend = "shm"});
}

// A failed thread ends the run, so the others cannot go on without it.
TEST(ReconfigureThreads, NameTheFailureOfOne) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<std::string, 3> errors;
  EXPECT_THAT(error_of<Error>([&] {
                spawn_threads(3,
                              [&](Context& context) {
                                const auto handles = handles_of_threads(context, *store, 1, context.rank());
                                if (context.rank() == 1) throw std::runtime_error("no more");
                                auto& error = errors.at(static_cast<std::size_t>(context.rank()));
                                error = error_of<RendezvousError>([&] {
                                  context.reconfigure({.uuid = 1, .handles = handles, .timeout = 100s});
                                });
                              },
                              {.backend = "shm"});
              }),
              HasSubstr("rank 1 of 3 (a thread): no more"));
  EXPECT_THAT(errors[0], HasSubstr("the thread of another rank has failed"));
  EXPECT_THAT(errors[2], HasSubstr("the thread of another rank has failed"));
}

// -- under a launcher

// The store that rank 0's init() serves.
c10::intrusive_ptr<c10d::Store> store_of_launcher() {
  const Env env;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.get_int("MASTER_PORT").value());
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::PrefixStore>(
      "handles", c10::make_intrusive<c10d::TCPStore>(env.get("MASTER_ADDR").value(), options));
}

std::vector<std::string> handles_at_launcher(const std::vector<int>& processes, c10d::Store& store,
                                             const Context& context, int uuid) {
  const auto key = [&](int process) { return fmt::format("{}/{}", uuid, process); };
  store.set(key(own_process()), context.group().reconfigure_handle());
  std::vector<std::string> handles;
  for (const int process : processes) handles.push_back(store.get_to_str(key(process)));
  return handles;
}

// Rank 3 waits as a spare, and replaces rank 1, which leaves. In the first attempt rank 2 dies.
const testing::Scenario spares("reconfigure: spare rank", [] {
  const bool is_first = *Env().get_int("TORCHELASTIC_RESTART_COUNT") == 0;
  const auto context = init({.backend = "shm", .timeout = 30s, .enable_reconfigure = true});
  const auto store = store_of_launcher();
  if (own_process() != 3) {
    const auto handles = handles_at_launcher({0, 1, 2}, *store, context, 1);
    context.reconfigure({.uuid = 1, .handles = handles});
    expect_sums(context.group(), registered(context.group(), 10'000));
    context.barrier();
    if (is_first && own_process() == 2) ::raise(SIGKILL);
    if (own_process() == 1) return;
  }
  context.reconfigure({.uuid = 2, .handles = handles_at_launcher({3, 0, 2}, *store, context, 2)});
  EXPECT_EQ(context.local_world_size(), 3);
  expect_sums(context.group(), registered(context.group(), 10'000));
  if (!::testing::Test::HasFailure()) fmt::print("formed {}\n", context.rank());
});

// Rank 2 leaves the run and joins the others later.
const testing::Scenario comes_again("reconfigure: comes again", [] {
  std::optional<Context> context(init({.backend = "shm", .timeout = 30s}));
  const auto store = store_of_launcher();
  if (own_process() == 2) {
    context.reset();
    context.emplace(init({.backend = "shm", .timeout = 30s, .enable_reconfigure = true}));
  } else {
    context->reconfigure({.uuid = 1, .handles = handles_at_launcher({1, 0}, *store, *context, 1)});
    expect_sums(context->group(), registered(context->group(), 1'000));
  }
  context->reconfigure({.uuid = 2, .handles = handles_at_launcher({0, 2, 1}, *store, *context, 2)});
  expect_sums(context->group(), registered(context->group(), 1'000));
});

TEST(ReconfigureUnderLauncher, ARankThatLeftCanComeAgain) {
  expect_all_passed(run_ranks(comes_again, {.world_size = 3}));
}

TEST(ReconfigureUnderLauncher, SpareRanksReplaceThoseThatLeave) {
  testing::LauncherProcess launcher(
      {"run", "--nproc-per-node", "4", "--max-restarts", "1", own_program().string()},
      {.env = {{testing::kScenarioVariable, spares.name()}, {"LOCKSTEP_LOG_LEVEL", "warning"}}});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  for (const int rank : {0, 1, 2}) EXPECT_THAT(launcher.out(), HasSubstr(fmt::format("formed {}", rank)));
}

}  // namespace
}  // namespace lockstep
