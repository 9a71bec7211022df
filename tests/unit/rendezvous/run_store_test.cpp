// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/run_store.h"

#include <csignal>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "rendezvous/generations.h"
#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using rendezvous::Generations;
using rendezvous::RunStore;
using ::testing::HasSubstr;

std::shared_ptr<const RunMemory> new_memory(bool can_shrink = false) {
  return std::make_shared<const RunMemory>(RunMemory::create(2, can_shrink));
}

// A process that runs `work` and then ends or, if `is_killed`, is killed.
template <class Work>
pid_t process(const Work& work, bool is_killed = false) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(60);
  work();
  if (is_killed) ::raise(SIGKILL);
  ::_exit(0);
}

void wait_for(pid_t pid, int signal = 0) {
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : 0, signal);
  if (signal == 0) {
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

// What a call returns, or that it throws.
template <class Call>
std::string result_of(const Call& call) {
  try {
    return call();
  } catch (const c10::Error&) {
    return "error";
  }
}

TEST(RunStore, AnswersAsHashStore) {
  const auto ours = c10::make_intrusive<RunStore>(new_memory());
  const auto theirs = c10::make_intrusive<c10d::HashStore>();
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto key = "key" + std::to_string(random() % 7);
    const auto text = std::to_string(random() % 3);
    const auto other = random() % 4 == 0 ? "" : std::to_string(random() % 3);
    const auto kind = random() % 7;
    const auto call = [&](c10d::Store& store) {
      return result_of([&]() -> std::string {
        switch (kind) {
          case 0:
            store.set(key, text);
            return "";
          case 1:
            return store.compareSet(key, other, text);
          case 2:
            store.wait({key}, 1ms);
            return store.get_to_str(key);
          case 3:
            return std::to_string(store.add(key, 5));
          case 4:
            return std::to_string(store.deleteKey(key));
          case 5:
            return std::to_string(store.check({key, "key0"}));
          default:
            return std::to_string(store.getNumKeys());
        }
      });
    };
    ASSERT_EQ(call(*ours), call(*theirs)) << "call " << i << " of kind " << kind << " on " << key;
  }
}

TEST(RunStore, ManyProcessesAddAtOnce) {
  const auto memory = new_memory();
  std::vector<pid_t> processes;
  for (int i = 0; i < 4; ++i) {
    processes.push_back(process([&] {
      RunStore store(memory);
      for (int n = 0; n < 1000; ++n) store.add("sum", 1);
    }));
  }
  for (const auto pid : processes) wait_for(pid);
  EXPECT_EQ(RunStore(memory).add("sum", 0), 4000);
}

TEST(RunStore, AProcessThatWaitsIsWoken) {
  const auto memory = new_memory();
  const auto waits = process([&] { RunStore(memory).wait({"a", "b"}, 50s); });
  RunStore store(memory);
  store.set("a", "1");
  store.set("b", "2");
  wait_for(waits);
}

TEST(RunStore, OutlivesAWriterThatDiesInItsRecord) {
  const auto memory = new_memory();
  RunStore store(memory);
  store.set("before", "1");
  const auto dies = process(
      [&] {
        auto& state = memory->state();
        ::pthread_mutex_lock(&state.store_mutex);
        std::ranges::fill(memory->store().subspan(state.store_bytes, 100), std::byte{0xff});
      },
      true);
  wait_for(dies, SIGKILL);
  store.set("after", "2");
  RunStore another(memory);
  EXPECT_EQ(another.get_to_str("before") + another.get_to_str("after"), "12");
  EXPECT_EQ(another.getNumKeys(), 2);
}

TEST(RunStore, OfAnotherLauncherIsInherited) {
  const auto memory = new_memory();
  RunStore(memory).set("key", "value");
  const Env env({{RunMemory::kVariable, memory->variable()}});
  const auto inherited = std::make_shared<const RunMemory>(*RunMemory::inherited(env));
  EXPECT_EQ(RunStore(inherited).get_to_str("key"), "value");
  EXPECT_FALSE(RunMemory::inherited(Env(std::map<std::string, std::string>())));
}

TEST(Generations, ALateRankMeetsTheOthersInTheLastOne) {
  const auto memory = new_memory();
  const auto late = process([&] {
    Generations own(memory, c10::make_intrusive<RunStore>(memory), 1);
    const auto members = own.meet("handle 1", 50s);
    ::_exit(members.generation == 2 ? 0 : 1);
  });
  Generations own(memory, c10::make_intrusive<RunStore>(memory), 0);
  EXPECT_FALSE(own.is_proposed());
  own.propose_after(0);
  own.propose_after(0);
  EXPECT_TRUE(own.is_proposed());
  own.propose_after(1);
  const auto members = own.meet("handle 0", 50s);
  EXPECT_EQ(members.generation, 2U);
  EXPECT_THAT(members.handles, ::testing::ElementsAre("handle 0", "handle 1"));
  wait_for(late);
  own.enter(2);
  EXPECT_FALSE(own.is_proposed());
  EXPECT_EQ(Generations(memory, c10::make_intrusive<RunStore>(memory), 1).current(), 2U);
}

std::string error_of_absent_rank(bool can_shrink) {
  const auto memory = new_memory(can_shrink);
  const Generations own(memory, c10::make_intrusive<RunStore>(memory), 0);
  own.propose_after(0);
  return error_of<RendezvousError>([&] { (void)own.meet("handle 0", 10ms); });
}

TEST(Generations, NamesTheRanksThatDoNotCome) {
  EXPECT_THAT(error_of_absent_rank(/*can_shrink=*/false),
              HasSubstr("after 10 ms rank 1 has not come to form the group again: a replacement has not"));
  EXPECT_THAT(
      error_of_absent_rank(/*can_shrink=*/true),
      HasSubstr(
          "after 10 ms rank 1 (of the 2 that were started) has not come to form the group again: a rank"));
}

}  // namespace
}  // namespace lockstep::testing
