// SPDX-License-Identifier: BSD-3-Clause
// Programs that start their own ranks: what spawn() gives to them, and what it reports about their ends. Most
// tests run in a process of their own, with a watchdog.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>
#include <sys/wait.h>
#include <thread>
#include <tuple>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/spawn/spawn.h>

#include "base/env.h"
#include "base/shared_memory.h"
#include "rendezvous/session.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Property;
using ::testing::StartsWith;
using ::testing::Throws;
using ::testing::ThrowsMessage;

testing::RankResult run_alone(const testing::Scenario& scenario) {
  return testing::run_ranks(
      scenario, {.world_size = 1, .env = {{"OMP_NUM_THREADS", ""}, {"RANK", ""}, {"WORLD_SIZE", ""}}})[0];
}

void expect_passes_alone(const testing::Scenario& scenario) {
  testing::expect_all_passed({run_alone(scenario)});
}

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

int occurrences_of(const std::string& part, const std::string& text) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// A number for each rank, in memory that all share.
class Results {
 public:
  explicit Results(int size)
      : memory_(SharedMemory::create("results", static_cast<std::size_t>(size) * sizeof(double))) {}
  double& operator[](int rank) const { return reinterpret_cast<double*>(memory_.data())[rank]; }

 private:
  SharedMemory memory_;
};

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

const testing::Scenario arguments("spawn: arguments", [] {
  const Results results(3);
  const std::string captured = "captured";
  const std::vector<double> weights{1, 2, 3};
  auto number = std::make_unique<double>(10);
  spawn(
      [&, moved = std::make_unique<int>(7)](int rank, std::unique_ptr<double> own,
                                            const std::vector<double>& list, std::string_view text) {
        require(captured == "captured" && *moved == 7 && text == "text", "an argument was lost");
        results[rank] = *own + list[static_cast<std::size_t>(rank)];
      },
      std::tuple(std::move(number), weights, "text"), {.nprocs = 3});
  EXPECT_EQ(results[0], 11);
  EXPECT_EQ(results[1], 12);
  EXPECT_EQ(results[2], 13);
});
TEST(Spawn, PassesCapturesAndArgumentsOfAnyType) { expect_passes_alone(arguments); }

const testing::Scenario meeting("spawn: meeting", [] {
  for (const char* backend : {"shm", "gloo"}) {
    const Results results(3);
    spawn(
        [&](int rank) {
          const auto context = init({.backend = backend});
          require(context.rank() == rank && context.local_rank() == rank && context.world_size() == 3 &&
                      context.local_world_size() == 3,
                  "the context is another rank's");
          auto values = torch::full({1000}, static_cast<double>(rank + 1));
          context.group().all_reduce(values);
          results[rank] = values.sum().item<double>();
        },
        {.nprocs = 3});
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(results[rank], 6000) << backend;
  }
});
TEST(Spawn, RanksJoinInInit) { expect_passes_alone(meeting); }

const testing::Scenario environment("spawn: environment", [] {
  spawn(
      [](int rank) {
        const Env env;
        require(env.get_int("RANK") == rank && env.get_int("LOCAL_RANK") == rank, "RANK");
        require(env.get_int("WORLD_SIZE") == 2 && env.get_int("LOCAL_WORLD_SIZE") == 2, "WORLD_SIZE");
        require(env.get("GROUP_RANK") == "0" && env.get("MASTER_ADDR") == "127.0.0.1", "GROUP_RANK");
        require(env.get("OMP_NUM_THREADS") == "3" && at::get_num_threads() == 3, "threads");
        char byte = 0;
        require(::read(STDIN_FILENO, &byte, 1) == 0, "stdin is to be empty");
      },
      {.nprocs = 2, .threads_per_rank = 3});
  EXPECT_FALSE(Env().has("RANK")) << "this process's own environment was changed";
});
TEST(Spawn, RanksHaveTheLaunchersEnvironment) { expect_passes_alone(environment); }

struct OwnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const testing::Scenario raised("spawn: raised", [] {
  const auto throw_in_one = [](int rank) {
    if (rank == 1) throw OwnError("the disk is full");
    sleep_for_ever();
  };
  try {
    spawn(throw_in_one, {.nprocs = 3});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const RankRaised& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_GT(error.pid(), 0);
    EXPECT_EQ(error.text(), "the disk is full");
    EXPECT_THAT(error.type(), HasSubstr("OwnError"));
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("rank 1 of 3 (process "), HasSubstr("OwnError: the disk is full")));
  }
  EXPECT_THAT([] { spawn([](int) { throw 42; }, {}); },
              Throws<RankRaised>(AllOf(Property(&RankRaised::type, "int"), Property(&RankRaised::text, ""))));
  EXPECT_THAT([] { spawn([](int) { TORCH_CHECK(false, "of LibTorch"); }, {}); },
              Throws<RankRaised>(Property(&RankRaised::text, "of LibTorch")));
  EXPECT_THAT([] { spawn([](int) { throw OwnError(std::string(100'000, 'x')); }, {}); },
              Throws<RankRaised>(Property(&RankRaised::text, std::string(16'383, 'x'))));
});
TEST(Spawn, ReportsTheExceptionOfARank) { expect_passes_alone(raised); }

template <typename Fn>
void expect_exit(int code, int signal, const std::string& message, Fn&& fn) {
  EXPECT_THAT([&] { spawn(fn, {.nprocs = 2}); },
              Throws<RankExited>(AllOf(Property(&RankExited::exit_code, code),
                                       Property(&RankExited::signal, signal), Property(&RankExited::rank, 1),
                                       Property(&RankExited::what, HasSubstr(message)))));
}

const testing::Scenario exited("spawn: exited", [] {
  const auto only_one = [](auto end) {
    return [end](int rank) {
      if (rank == 1) end();
      sleep_for_ever();
    };
  };
  expect_exit(7, 0, "exited with code 7", only_one([] { std::exit(7); }));
  expect_exit(3, 0, "exited with code 3", only_one([] { ::_exit(3); }));
  expect_exit(134, SIGABRT, "was killed by SIGABRT", only_one([] { std::abort(); }));
  expect_exit(139, SIGSEGV, "was killed by SIGSEGV", only_one([] { ::raise(SIGSEGV); }));
  expect_exit(137, SIGKILL, "was killed by SIGKILL", only_one([] { ::raise(SIGKILL); }));
  expect_exit(134, SIGABRT, "was killed by SIGABRT",
              only_one([] { std::thread([] { throw OwnError("in a thread"); }).join(); }));
  spawn([](int) { std::exit(0); }, {.nprocs = 2});
});
TEST(Spawn, ReportsHowARankExited) { expect_passes_alone(exited); }

const testing::Scenario endings("spawn: endings", [] {
  std::cout << "before. ";
  std::printf("printed before. ");
  std::atexit([] { std::printf("handler of the parent. "); });
  struct Guard {
    ~Guard() { std::printf("destructor of the parent. "); }
  };
  const Guard guard;
  spawn(
      [](int rank) {
        std::cout << "said by a rank. ";
        std::printf("printed by a rank. ");
        std::atexit([] { std::printf("handler of a rank. "); });
        if (rank == 1) std::exit(0);
      },
      {.nprocs = 3});
});
TEST(Spawn, RanksFlushAndRunOnlyTheirOwnExitHandlers) {
  const auto result = run_alone(endings);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(occurrences_of("printed before.", result.out), 1) << result.out;
  EXPECT_EQ(occurrences_of("parent.", result.out), 2) << result.out;
  EXPECT_EQ(occurrences_of("said by a rank.", result.out), 3) << result.out;
  EXPECT_EQ(occurrences_of("printed by a rank.", result.out), 3) << result.out;
  EXPECT_EQ(occurrences_of("handler of a rank.", result.out), 3) << result.out;
}

const testing::Scenario first_failure("spawn: first failure", [] {
  for (const char* backend : {"shm", "gloo"}) {
    const auto run = [&] {
      spawn(
          [&](int rank) {
            const auto context = init({.backend = backend});
            // Leaving many groups takes a while, during which the other ranks fail too.
            std::vector<ProcessGroup> groups;
            for (int i = 0; i < 4; ++i) groups.push_back(context.new_group({0, 1, 2}));
            if (rank == 2) throw OwnError("the cause");
            groups.front().barrier();
          },
          {.nprocs = 3});
    };
    EXPECT_THAT(run, Throws<RankRaised>(
                         AllOf(Property(&RankRaised::rank, 2), Property(&RankRaised::text, "the cause"))))
        << backend;
  }
});
TEST(Spawn, ReportsTheCauseNotItsConsequence) { expect_passes_alone(first_failure); }

const testing::Scenario deadline("spawn: timeout", [] {
  const auto run = [] {
    spawn(
        [](int rank) {
          if (rank == 0) return;
          if (rank == 2) ::signal(SIGTERM, SIG_IGN);
          sleep_for_ever();
        },
        {.nprocs = 3, .timeout = 3s, .grace_period = 50ms});
  };
  EXPECT_THAT(
      run, ThrowsMessage<TimeoutError>(AllOf(HasSubstr("3000 ms"), HasSubstr("still running: rank 1, 2"))));
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1) << "a process is left";
});
TEST(Spawn, EndsAtItsTimeLimit) { expect_passes_alone(deadline); }

const testing::Scenario not_joined("spawn: not joined", [] {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Results results(2);
  auto context = spawn(
      [&](int rank) {
        char byte = 0;
        require(::read(ends[0], &byte, 1) == 1, "read");
        results[rank] = ::getpid();
      },
      {.nprocs = 2, .join = false});
  EXPECT_FALSE(context.join(1ms));
  EXPECT_FALSE(context.join(20ms));
  ASSERT_EQ(::write(ends[1], "xx", 2), 2);
  EXPECT_TRUE(context.join());
  EXPECT_TRUE(context.join(1ms));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(results[rank], context.pids().at(static_cast<std::size_t>(rank)));
  }
  auto failing = spawn([](int) { throw OwnError("later"); }, {.join = false});
  EXPECT_THAT([&] { failing.join(); }, ThrowsMessage<RankRaised>(HasSubstr("later")));
  EXPECT_THAT([&] { failing.join(); }, ThrowsMessage<RankRaised>(HasSubstr("later"))) << "a second time";
});
TEST(Spawn, MayBeJoinedLater) { expect_passes_alone(not_joined); }

const testing::Scenario dropped("spawn: dropped", [] {
  auto context = spawn(
      [](int rank) {
        if (rank == 1) ::signal(SIGTERM, SIG_IGN);
        sleep_for_ever();
      },
      {.nprocs = 2, .join = false, .grace_period = 50ms});
  context = spawn([](int) { sleep_for_ever(); }, {.join = false});
  EXPECT_FALSE(context.join(1ms));
  const auto moved = std::move(context);
  EXPECT_EQ(moved.pids().size(), 1U);
});
TEST(Spawn, StopsTheRanksOfADroppedContext) { expect_passes_alone(dropped); }

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

const testing::Scenario repeated("spawn: repeated", [] {
  const auto before = open_descriptors();
  for (int round = 0; round < 50; ++round) {
    spawn(
        [&](int rank) {
          const auto context = init({.backend = "shm"});
          auto value = torch::full({1}, static_cast<double>(rank));
          context.group().all_reduce(value);
          require(value.item<double>() == 1, "sum");
        },
        {.nprocs = 2});
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1) << "a process is left";
});
TEST(Spawn, MayBeRepeated) { expect_passes_alone(repeated); }

const testing::Scenario refused("spawn: refused", [] {
  const auto nothing = [](int) {};
  EXPECT_THAT([&] { spawn(nothing, {.nprocs = 0}); }, ThrowsMessage<ArgumentError>(HasSubstr("nprocs is 0")));
  EXPECT_THAT([&] { spawn(nothing, {.threads_per_rank = 0}); },
              ThrowsMessage<ArgumentError>(HasSubstr("threads_per_rank is 0; it must be 1 or more")));
  EXPECT_THAT([&] { spawn([&](int) { spawn(nothing, {}); }, {}); },
              Throws<RankRaised>(AllOf(Property(&RankRaised::type, "lockstep::ArgumentError"),
                                       Property(&RankRaised::text, HasSubstr("rank 0 of a run already")))));
  spawn_threads(1, [&](Context&) {
    EXPECT_THAT([&] { spawn(nothing, {}); }, ThrowsMessage<ArgumentError>(HasSubstr("spawn_threads")));
  });
  {
    const auto context = rendezvous::init({{}, Env(std::map<std::string, std::string>())});
    EXPECT_THAT([&] { spawn(nothing, {}); }, ThrowsMessage<ArgumentError>(HasSubstr("end its Context")));
  }
  spawn(nothing, {});
});
TEST(Spawn, InvalidUseIsRejected) { expect_passes_alone(refused); }

const testing::Scenario threads("spawn: threads", [] {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    std::jthread busy([&] {
      ::pthread_setname_np(::pthread_self(), "loading-data");
      char byte = 0;
      static_cast<void>(::read(ends[0], &byte, 1));
    });
    const auto run = [] { spawn([](int) {}, {}); };
    EXPECT_THAT(run, ThrowsMessage<ArgumentError>(
                         AllOf(HasSubstr("1 other thread,"), HasSubstr("\"loading-data\""))));
    ASSERT_EQ(::write(ends[1], "x", 1), 1);
  }
  spawn([](int) {}, {});
});
TEST(Spawn, AnotherThreadIsNamedAndRejected) { expect_passes_alone(threads); }

}  // namespace
}  // namespace lockstep
