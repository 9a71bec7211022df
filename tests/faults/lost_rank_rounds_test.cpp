// SPDX-License-Identifier: BSD-3-Clause
// A random rank is killed or stopped at a random moment of random calls, again and again: every survivor has
// to name it. LOCKSTEP_FAULT_ROUNDS=500 for a long run.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <iostream>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;

// When a rank died or threw, in memory that outlives it: no system call lies between the look at the clock
// and its death.
class LastMoments {
 public:
  explicit LastMoments(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) { map(); }
  LastMoments() : file_(::memfd_create("last-moments", MFD_CLOEXEC)) {
    if (::ftruncate(file_.get(), kBytes) != 0) throw std::runtime_error("ftruncate");
    map();
  }
  ~LastMoments() { ::munmap(moments_, kBytes); }
  LastMoments(const LastMoments&) = delete;
  LastMoments& operator=(const LastMoments&) = delete;

  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }
  void note(int rank) { moments_[rank].store(Clock::now().time_since_epoch().count()); }
  double milliseconds_between(std::size_t first, std::size_t second) const {
    return std::chrono::duration<double, std::milli>(Clock::duration(moments_[second] - moments_[first]))
        .count();
  }

 private:
  using Moment = std::atomic<Clock::rep>;
  static constexpr std::size_t kBytes = 64 * sizeof(Moment);

  void map() {
    void* place = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (place == MAP_FAILED) throw std::runtime_error("mmap");
    moments_ = static_cast<Moment*>(place);
  }

  UniqueFd file_;
  Moment* moments_ = nullptr;
};

// Calls without an end: small and large, in place and not, one at a time and several.
void call_for_ever(const ProcessGroup& group, unsigned seed) {
  std::mt19937 random(seed);
  const auto bucket = group.backend()->allocateTensor(1'000'000, at::TensorOptions());
  bucket.zero_();
  const auto length = bucket.numel() / group.size();
  while (true) {
    auto tensor =
        torch::ones({static_cast<std::int64_t>(random() % 3 == 0 ? random() % 500'000 : random() % 2000)});
    switch (random() % 6) {
      case 0:
        group.all_reduce(bucket);
        break;
      case 1:
        group.broadcast(tensor, static_cast<int>(random() % static_cast<unsigned>(group.size())));
        break;
      case 2: {
        auto first = group.all_reduce_async(bucket);
        group.all_reduce(tensor);
        first.wait();
        break;
      }
      case 3: {
        auto sent = group.send_async(tensor, (group.rank() + 1) % group.size());
        auto received = torch::empty_like(tensor);
        (void)group.recv(received, (group.rank() + group.size() - 1) % group.size());
        sent.wait();
        break;
      }
      case 4: {
        const auto part = bucket.narrow(0, length * group.rank(), length);
        const auto whole = bucket.narrow(0, 0, length * group.size());
        group.reduce_scatter_tensor(part, whole);
        group.all_gather_into_tensor(whole, part);
        break;
      }
      default:
        group.all_reduce(tensor);
    }
  }
}

const testing::Scenario doomed("faults: doomed", [] {
  const Env env;
  const auto seed = static_cast<unsigned>(*env.get_int("TEST_SEED"));
  const auto victim = static_cast<int>(*env.get_int("TEST_VICTIM"));
  const int signal = static_cast<int>(*env.get_int("TEST_SIGNAL"));
  const auto context = init({.backend = "shm", .timeout = signal == SIGKILL ? 20s : 3s});
  context.barrier();
  const auto moments = std::make_shared<LastMoments>(*env.get("TEST_MOMENTS"));
  std::thread executioner;
  if (context.rank() == victim) {
    executioner = std::thread([moments, seed, victim, signal] {
      std::this_thread::sleep_for(std::chrono::microseconds(std::mt19937(seed)() % 30'000));
      moments->note(victim);
      ::raise(signal);
    });
    executioner.detach();
  }
  try {
    call_for_ever(context.group(), seed);
  } catch (const Error&) {
    moments->note(context.rank());
    throw;
  }
});

TEST(Faults, EverySurvivorNamesTheRankThatWasLost) {
  const char* wanted = std::getenv("LOCKSTEP_FAULT_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 16;
  std::mt19937 random(static_cast<unsigned>(rounds));
  std::vector<double> delays;
  for (int round = 0; round < rounds; ++round) {
    const int size = 2 + static_cast<int>(random() % 3);
    const auto victim = random() % static_cast<unsigned>(size);
    const bool kill = random() % 5 != 0;
    const LastMoments moments;
    const auto results = testing::run_ranks(
        doomed, {.world_size = size,
                 .env = {{"TEST_SEED", std::to_string(random() % 1'000'000)},
                         {"TEST_MOMENTS", moments.path()},
                         {"TEST_VICTIM", std::to_string(victim)},
                         {"TEST_SIGNAL", std::to_string(kill ? SIGKILL : SIGSTOP)}},
                 .stuck = kill ? std::vector<int>{} : std::vector{static_cast<int>(victim)},
                 .timeout = 30s});
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      if (rank == victim) continue;
      const auto& result = results[rank];
      const auto name = "rank " + std::to_string(victim) + " (pid ";
      EXPECT_EQ(result.exit_code, 1) << "round " << round << ", rank " << rank << ": " << result.err;
      EXPECT_THAT(result.err, HasSubstr(name)) << "round " << round;
      EXPECT_THAT(result.err, HasSubstr(kill ? "is dead" : "it has been stopped by a signal"))
          << "round " << round;
      if (kill) delays.push_back(moments.milliseconds_between(victim, rank));
    }
    if (HasFailure()) break;
  }
  if (delays.empty()) return;
  std::ranges::sort(delays);
  std::cout << rounds << " rounds; from the kill to the survivors' errors: median "
            << delays[delays.size() / 2] << " ms, longest " << delays.back() << " ms" << std::endl;
}

}  // namespace
}  // namespace lockstep
