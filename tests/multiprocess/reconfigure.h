// SPDX-License-Identifier: BSD-3-Clause
// For the tests of groups that are formed again.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "multiprocess/backends.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {

using namespace std::chrono_literals;

inline int own_process() { return static_cast<int>(*Env().get_int("RANK")); }

// A store that no process serves, so any may die.
inline c10::intrusive_ptr<c10d::Store> shared_store() {
  static const auto store =
      c10::make_intrusive<c10d::FileStore>(Env().get("TEST_FOLDER").value() + "/store", -1);
  return store;
}

inline Context init_among(int size) {
  return init({.backend = backend_under_test(),
               .timeout = 50s,
               .world_size = size,
               .rank = own_process(),
               .store = shared_store()});
}

inline Context init_for_later() {
  return init({.backend = backend_under_test(),
               .timeout = 50s,
               .world_size = 1,
               .rank = 0,
               .store = shared_store(),
               .enable_reconfigure = true});
}

// The handles of these processes, in this order.
inline std::vector<std::string> handles_of(const std::vector<int>& processes, const ProcessGroup& group,
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
inline void wait_for(const std::vector<int>& processes, const std::string& event) {
  const auto store = shared_store();
  const auto key = [&](int process) { return fmt::format("{}/{}", event, process); };
  store->set(key(own_process()), "yes");
  std::vector<std::string> keys;
  for (const int process : processes) keys.push_back(key(process));
  store->wait(keys, 30s);
}

inline void form(const Context& context, const std::vector<int>& processes, std::int64_t uuid) {
  context.reconfigure({.uuid = uuid, .handles = handles_of(processes, context.group(), uuid)});
  EXPECT_EQ(context.world_size(), std::ssize(processes));
  EXPECT_EQ(processes.at(static_cast<std::size_t>(context.rank())), own_process());
  EXPECT_EQ(get_rank(), context.rank());
  EXPECT_EQ(get_world_size(), context.world_size());
  EXPECT_EQ(context.group().backend()->getBackendOptions()->timeout, context.group().timeout());
  EXPECT_TRUE(context.group().recent_calls().empty());
}

// Registered memory, which no reconfigure() moves.
inline at::Tensor registered(const ProcessGroup& group, std::int64_t count) {
  return group.backend()->allocateTensor(count, at::kFloat);
}

// Small, and in registered memory. A call's number begins with 1 in a group.
inline void expect_sums(const ProcessGroup& group, const at::Tensor& registered) {
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
inline std::size_t shared_memories() {
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

inline std::map<std::string, std::string> environment(const std::string& backend, const TempFolder& folder) {
  return {{kBackendVariable, backend},
          {"TEST_FOLDER", folder.path().string()},
          {"LOCAL_RANK", ""},
          {"LOCAL_WORLD_SIZE", ""}};
}

// Every test over each backend that can form groups again.
class ReconfigureTest : public ::testing::TestWithParam<std::string> {
 protected:
  static std::vector<RankResult> results_of(const Scenario& scenario, int processes,
                                            const std::map<std::string, std::string>& more) {
    const TempFolder folder;
    // Two processes are on one host, the others on another.
    const auto layout = GetParam() == "shm" ? GetParam() : fmt::format("{}_2_{}", GetParam(), processes - 2);
    auto env = environment(GetParam(), folder);
    env.insert(more.begin(), more.end());
    return run_ranks(
        scenario, {.world_size = processes, .env = std::move(env), .rank_env = hosts_of(layout, processes)});
  }
  static void run(const Scenario& scenario, int processes) {
    expect_all_passed(results_of(scenario, processes, {}));
  }
  static void run_with_victims(const Scenario& scenario, int processes, const std::set<int>& victims,
                               const std::map<std::string, std::string>& env = {}) {
    const auto results = results_of(scenario, processes, env);
    for (int process = 0; process < processes; ++process) {
      const auto& result = results[static_cast<std::size_t>(process)];
      EXPECT_EQ(victims.contains(process) ? result.signal : result.exit_code,
                victims.contains(process) ? SIGKILL : 0)
          << process << ": " << result.err;
    }
  }
};

}  // namespace lockstep::testing
