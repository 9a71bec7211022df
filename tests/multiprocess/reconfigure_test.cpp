// SPDX-License-Identifier: BSD-3-Clause
// Groups that are formed again: without ranks that died, with new ones, and errors on the way.
#include <csignal>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "comm/mapped_memory.h"
#include "multiprocess/backends.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using ::testing::HasSubstr;

int own_process() { return static_cast<int>(*Env().get_int("RANK")); }

// A store that no process serves, so any may die.
c10::intrusive_ptr<c10d::Store> shared_store() {
  static const auto store =
      c10::make_intrusive<c10d::FileStore>(Env().get("TEST_FOLDER").value() + "/store", -1);
  return store;
}

Context init_among(int size) {
  return init({.backend = testing::backend_under_test(),
               .world_size = size,
               .rank = own_process(),
               .timeout = 50s,
               .store = shared_store()});
}

Context init_for_later() {
  return init({.backend = testing::backend_under_test(),
               .world_size = 1,
               .rank = 0,
               .timeout = 50s,
               .store = shared_store(),
               .enable_reconfigure = true});
}

// The handles of these processes, in this order.
std::vector<std::string> handles_of(const std::vector<int>& processes, const ProcessGroup& group,
                                    std::int64_t uuid, std::chrono::milliseconds limit = 30s) {
  const auto store = shared_store();
  const auto key = [&](int process) { return fmt::format("handle/{}/{}", uuid, process); };
  store->set(key(own_process()), group.reconfigure_handle());
  std::vector<std::string> keys, handles;
  for (const int process : processes) keys.push_back(key(process));
  store->wait(keys, limit);
  for (const int process : processes) handles.push_back(store->get_to_str(key(process)));
  return handles;
}

// Outside of the group: a rank that dies before the others have completed a call may end it.
void wait_for(const std::vector<int>& processes, const std::string& event) {
  const auto store = shared_store();
  const auto key = [&](int process) { return fmt::format("{}/{}", event, process); };
  store->set(key(own_process()), "yes");
  std::vector<std::string> keys;
  for (const int process : processes) keys.push_back(key(process));
  store->wait(keys, 30s);
}

void form(const Context& context, const std::vector<int>& processes, std::int64_t uuid) {
  context.reconfigure({.uuid = uuid, .handles = handles_of(processes, context.group(), uuid)});
  EXPECT_EQ(context.world_size(), std::ssize(processes));
  EXPECT_EQ(processes.at(static_cast<std::size_t>(context.rank())), own_process());
  EXPECT_EQ(get_rank(), context.rank());
  EXPECT_EQ(get_world_size(), context.world_size());
  EXPECT_TRUE(context.group().recent_calls().empty());
}

// Registered memory, which no reconfigure() moves.
at::Tensor registered(const ProcessGroup& group, std::int64_t count) {
  return group.backend()->allocateTensor(count, at::kFloat);
}

// Small, and in registered memory. A call's number begins with 1 in a group.
void expect_sums(const ProcessGroup& group, const at::Tensor& registered) {
  const auto sum = static_cast<float>(group.size() * (group.size() + 1)) / 2;
  auto small = torch::full({3}, group.rank() + 1.0F);
  group.all_reduce(small);
  EXPECT_EQ(small[2].item<float>(), sum);
  EXPECT_EQ(group.recent_calls().front().number, 1U);
  registered.fill_(group.rank() + 1.0F);
  group.all_reduce(registered);
  EXPECT_TRUE(torch::all(registered == sum).item<bool>());
}

// The distinct shared memories of Lockstep that this process maps.
std::size_t shared_memories() {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> inodes;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep") == std::string::npos) continue;
    std::istringstream fields(line);
    std::string inode;
    for (int i = 0; i < 5; ++i) fields >> inode;
    inodes.insert(inode);
  }
  return inodes.size();
}

std::map<std::string, std::string> environment(const std::string& backend,
                                               const testing::TempFolder& folder) {
  return {{testing::kBackendVariable, backend},
          {"TEST_FOLDER", folder.path().string()},
          {"LOCAL_RANK", ""},
          {"LOCAL_WORLD_SIZE", ""}};
}

class Reconfigure : public ::testing::TestWithParam<std::string> {
 protected:
  static std::vector<testing::RankResult> results_of(const testing::Scenario& scenario, int processes) {
    const testing::TempFolder folder;
    // Two processes are on one host, the others on another.
    const auto layout = GetParam() == "shm" ? GetParam() : fmt::format("{}_2_{}", GetParam(), processes - 2);
    return testing::run_ranks(scenario, {.world_size = processes,
                                         .env = environment(GetParam(), folder),
                                         .rank_env = testing::hosts_of(layout, processes)});
  }
  static void run(const testing::Scenario& scenario, int processes) {
    testing::expect_all_passed(results_of(scenario, processes));
  }
  static void run_with_victims(const testing::Scenario& scenario, int processes,
                               const std::set<int>& victims) {
    const auto results = results_of(scenario, processes);
    for (int process = 0; process < processes; ++process) {
      const auto& result = results[static_cast<std::size_t>(process)];
      EXPECT_EQ(victims.contains(process) ? result.signal : result.exit_code,
                victims.contains(process) ? SIGKILL : 0)
          << process << ": " << result.err;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Reconfigure, ::testing::Values("shm", "hierarchical"));

// -- other members

const testing::Scenario shrinks("reconfigure: shrinks", [] {
  const auto context = init_among(4);
  const auto before = context.group();
  EXPECT_TRUE(before.supports_reconfigure());
  const auto memory = registered(before, 3'000'001);
  const auto* const place = memory.data_ptr();
  expect_sums(before, memory);
  wait_for({0, 1, 2, 3}, "sums");
  if (context.rank() == 1) ::raise(SIGKILL);
  EXPECT_THROW(before.all_reduce_async(torch::ones({10})).wait(), Error);
  form(context, {0, 2, 3}, 1);
  EXPECT_EQ(memory.data_ptr(), place);
  EXPECT_EQ(memory[3'000'000].item<float>(), 10);
  expect_sums(context.group(), memory);
  EXPECT_THAT(error_of<Error>([&] { before.barrier(); }),
              HasSubstr("formed again with other members; use the group that reconfigure() returned"));
  // The segments and heaps of this host's ranks, none of the dead one.
  EXPECT_EQ(shared_memories(), 2 * static_cast<std::size_t>(context.local_world_size()));
});

TEST_P(Reconfigure, GoesOnWithoutAKilledRank) { run_with_victims(shrinks, 4, {1}); }

const testing::Scenario grows("reconfigure: grows", [] {
  std::optional<Context> context;
  if (own_process() < 2) {
    context.emplace(init_among(2));
    context->barrier();
  } else {
    context.emplace(init_for_later());
    EXPECT_THAT(
        error_of<Error>([&] { context->barrier(); }),
        HasSubstr("no members yet: it was made with enable_reconfigure, so call reconfigure() first"));
  }
  form(*context, {2, 0, 1, 3}, 7);
  expect_sums(context->group(), registered(context->group(), 100'000));
  const auto part = context->new_group({0, 3});
  EXPECT_EQ(part.has_value(), own_process() >= 2);
  if (part) expect_sums(*part, torch::empty({4}));
  context->barrier();
});

TEST_P(Reconfigure, GrowsByProcessesThatCameLater) { run(grows, 4); }

// Each member to a group of its own and back, as the elements of a set.
const testing::Scenario splits("reconfigure: alone and together", [] {
  const auto context = init_among(3);
  const auto memory = registered(context.group(), 300'000);
  form(context, {own_process()}, 10 + own_process());
  expect_sums(context.group(), memory);
  const auto handles = handles_of({0, 1, 2}, context.group(), 20);
  context.reconfigure({.uuid = 20, .handles = std::unordered_set(handles.begin(), handles.end())});
  EXPECT_EQ(context.world_size(), 3);
  expect_sums(context.group(), memory);
  const auto shared = comm::maps_memory(context.group())
                          ? comm::map_on_all_ranks(context.group(), {0}, 64, std::source_location::current())
                          : std::vector<at::Tensor>{torch::zeros({64}, at::kByte)};
  shared[0][own_process()] = own_process() + 1;
  form(context, {2, 1, 0}, 21);
  expect_sums(context.group(), memory);
  EXPECT_EQ(shared[0][own_process()].item<int>(), own_process() + 1);
});

TEST_P(Reconfigure, MembersPartAndMeetAgain) { run(splits, 3); }

const testing::Scenario replaces("reconfigure: replaces twice", [] {
  std::optional<Context> context;
  const bool is_spare = own_process() > 2;
  context.emplace(is_spare ? init_for_later() : init_among(3));
  std::optional<at::Tensor> memory;
  const auto run_until_death = [&](int victim, const std::vector<int>& processes) {
    if (!memory) memory = registered(context->group(), 1'000'000);
    expect_sums(context->group(), *memory);
    wait_for(processes, fmt::format("sums with {}", victim));
    if (own_process() == victim) ::raise(SIGKILL);
    EXPECT_THROW(context->barrier(), Error);
  };
  if (!is_spare) run_until_death(2, {0, 1, 2});
  if (own_process() != 4) {
    form(*context, {0, 1, 3}, 1);
    run_until_death(1, {0, 1, 3});
  }
  form(*context, {4, 0, 3}, 2);
  expect_sums(context->group(), memory ? *memory : registered(context->group(), 1'000'000));
});

TEST_P(Reconfigure, ReplacesOneRankAfterAnother) { run_with_victims(replaces, 5, {1, 2}); }

// -- errors

const testing::Scenario refuses("reconfigure: wrong options", [] {
  const auto context = init_among(2);
  const auto group = context.group();
  const auto handles = handles_of({0, 1}, group, 1);
  const auto own = group.reconfigure_handle();
  const auto error = [&](const ReconfigureOptions& options) {
    return error_of<ArgumentError>([&] { (void)group.reconfigure(options); });
  };
  EXPECT_THAT(error({.uuid = 1}), HasSubstr("handles is empty"));
  EXPECT_THAT(error({.uuid = 1, .handles = std::vector{own, own}}), HasSubstr("listed twice"));
  EXPECT_THAT(error({.uuid = 1, .handles = std::vector{handles[1 - group.rank()]}}),
              HasSubstr("lacks the handle of this process"));
  for (const auto* text :
       {"", "gloo:0:1:2:", "lockstep/1:0", "lockstep/1:x:1:1:host", "lockstep/2:0:1:1:host"})
    EXPECT_THAT(error({.uuid = 1, .handles = std::vector<std::string>{own, text}}),
                HasSubstr("is no handle"));
  EXPECT_THAT(error({.uuid = 1, .handles = handles, .timeout = 0ms}), HasSubstr("it must be positive"));
  context.barrier();  // nothing has happened

  // A rank that does not come is named, and the group cannot be used until the next success.
  auto work = group.rank() == 0 ? group.barrier_async() : Work();
  if (group.rank() == 0) {
    const auto alone = [&](std::int64_t uuid) {
      return error_of<RendezvousError>(
          [&] { (void)group.reconfigure({.uuid = uuid, .handles = handles, .timeout = 200ms}); });
    };
    EXPECT_THAT(alone(2), HasSubstr("timed out: rank 1 did not call it within 200 ms"));
    EXPECT_THAT(alone(2), HasSubstr("uuid 2 was already used"));
    EXPECT_THAT(error_of<Error>([&] { work.wait(); }), HasSubstr("this rank has left the group"));
    EXPECT_THAT(error_of<Error>([&] { group.barrier(); }), HasSubstr("this rank has left the group"));
  }
  form(context, {0, 1}, 3);
  context.barrier();
  EXPECT_THAT(error_of<Error>([&] { (void)group.reconfigure({.uuid = 4, .handles = handles}); }),
              HasSubstr("formed again"));
  EXPECT_THAT(error_of<ArgumentError>([&] { context.reconfigure({.uuid = 4, .handles = handles}); }),
              HasSubstr("a handle is valid until the next reconfigure() has succeeded"));
  context.barrier();
});

TEST(ReconfigureErrors, NameTheFaultAndLeaveTheGroupAsItIs) {
  const testing::TempFolder folder;
  testing::expect_all_passed(testing::run_ranks(refuses, {.env = environment("shm", folder)}));
}

const testing::Scenario differs("reconfigure: other handles", [] {
  const auto context = init_among(3);
  const auto handles = handles_of({0, 1, 2}, context.group(), 1);
  auto mine = handles;
  if (own_process() == 0) mine.pop_back();
  EXPECT_THAT(
      error_of<RendezvousError>([&] { context.reconfigure({.uuid = 1, .handles = mine, .timeout = 2s}); }),
      ::testing::AnyOf(HasSubstr("pass different handles"), HasSubstr("did not call it within")));
  form(context, {0, 1, 2}, 2);
  context.barrier();
});

TEST(ReconfigureErrors, DifferentHandlesAreNoticed) {
  const testing::TempFolder folder;
  testing::expect_all_passed(
      testing::run_ranks(differs, {.world_size = 3, .env = environment("shm", folder)}));
}

const testing::Scenario others("reconfigure: other backends", [] {
  const auto context = init_among(2);
  EXPECT_FALSE(context.group().supports_reconfigure());
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)context.group().reconfigure_handle(); }),
              HasSubstr("reconfigure() is for shm"));
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)context.group().reconfigure({.uuid = 1}); }),
              HasSubstr("reconfigure() is for shm"));
});

TEST(ReconfigureErrors, OtherBackendsSaySo) {
  const testing::TempFolder folder;
  testing::expect_all_passed(testing::run_ranks(others, {.env = environment("gloo", folder)}));
}

// -- deaths at any time

constexpr int kFormings = 400;

// One rank dies while all of them form the group again and again.
const testing::Scenario dies_meanwhile("reconfigure: dies meanwhile", [] {
  const auto context = init_among(4);
  const auto memory = registered(context.group(), 50'000);
  std::jthread killer;
  if (own_process() == 2) {
    std::mt19937 random(std::random_device{}());
    const auto delay = std::chrono::microseconds(random() % 300'000);
    killer = std::jthread([delay] {
      std::this_thread::sleep_for(delay);
      ::raise(SIGKILL);
    });
  }
  try {
    for (int round = 0; round < kFormings; ++round) {
      const auto handles = handles_of({0, 1, 2, 3}, context.group(), round, 1s);
      context.reconfigure({.uuid = round, .handles = handles, .timeout = 1s});
      context.group().all_reduce(memory);
    }
    FAIL() << "no rank died";
  } catch (const std::exception&) {
    // of a forming or a call, or of the store, which waits for the handle of the dead rank
  }
  form(context, {0, 1, 3}, kFormings);
  expect_sums(context.group(), memory);
});

TEST_P(Reconfigure, SurvivesADeathAtAnyTime) {
  for (int round = 0; round < static_cast<int>(Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(1)); ++round)
    run_with_victims(dies_meanwhile, 4, {2});
}

}  // namespace
}  // namespace lockstep
