// SPDX-License-Identifier: BSD-3-Clause
// StopSignals: what one process does with a first and a second signal, and on what ranks agree.
#include <chrono>
#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/lockstep.h>

#include "multiprocess/trainer_points.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

volatile std::sig_atomic_t former_calls = 0;

// The handler of the program, while a test runs.
class FormerHandler {
 public:
  explicit FormerHandler(int signal)
      : signal_(signal), before_(std::signal(signal, [](int) { former_calls = former_calls + 1; })) {
    former_calls = 0;
  }
  ~FormerHandler() { std::signal(signal_, before_); }
  FormerHandler(const FormerHandler&) = delete;
  FormerHandler& operator=(const FormerHandler&) = delete;

 private:
  int signal_;
  void (*before_)(int);
};

TEST(StopSignals, StopsAfterASignal) {
  const FormerHandler handler(SIGUSR2);
  {
    StopSignals signals({SIGUSR1, SIGUSR2});
    EXPECT_FALSE(signals.should_stop());
    EXPECT_FALSE(signals.arrived());
    std::raise(SIGUSR2);
    EXPECT_TRUE(signals.arrived());
    EXPECT_TRUE(signals.should_stop());
    EXPECT_TRUE(signals.should_stop());
  }
  std::raise(SIGUSR1);  // as on another way; it does not end this process
  EXPECT_EQ(former_calls, 0);
  { const StopSignals again({SIGUSR1, SIGUSR2, SIGUSR1}); }  // restores the handlers of the program
  std::raise(SIGUSR2);
  EXPECT_EQ(former_calls, 1);
  struct sigaction now {};
  ::sigaction(SIGUSR1, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(StopSignals, DoesNotSwallowASignalThatNobodyHasAskedFor) {
  const FormerHandler handler(SIGUSR2);
  {
    const StopSignals signals({SIGUSR2});
    std::raise(SIGUSR2);
    EXPECT_EQ(former_calls, 0);
  }
  EXPECT_EQ(former_calls, 1);
  {
    StopSignals signals({SIGUSR2});
    EXPECT_FALSE(signals.should_stop());
  }
  EXPECT_EQ(former_calls, 1);
}

// It comes on two ways at once; once a second has passed it is a second one.
TEST(StopSignals, ASecondSignalHasItsFormerEffect) {
  const FormerHandler handler(SIGUSR2);
  const StopSignals signals({SIGUSR2});
  const auto begin = std::chrono::steady_clock::now();
  while (former_calls == 0) {
    std::raise(SIGUSR2);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  std::raise(SIGUSR2);
  EXPECT_EQ(former_calls, 2);
}

TEST(StopSignals, RefusesWhatItCannotHandle) {
  EXPECT_THAT(error_of<ArgumentError>([] { StopSignals({SIGUSR2, SIGKILL}); }), HasSubstr("signal 9"));
  EXPECT_THAT(error_of<ArgumentError>([] { StopSignals({-1}); }), HasSubstr("signal -1"));
  const StopSignals signals;  // the failed ones hold nothing
  EXPECT_THAT(error_of<ArgumentError>([] { StopSignals(); }), HasSubstr("another StopSignals"));
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trainer trainer(net, optimizer);
  EXPECT_THAT(error_of<ArgumentError>([&] { (void)trainer.begin_fit(); }), HasSubstr("another StopSignals"));
  Trainer without(net, optimizer, {.stop_signals = {}});
  (void)without.begin_fit();
  EXPECT_FALSE(StopSignals(std::vector<int>()).should_stop());
  spawn_threads(1, [](Context&) {
    EXPECT_THAT(error_of<ArgumentError>([] { StopSignals(); }), HasSubstr("spawn_threads()"));
  });
}

const Scenario agreement("ranks agree to stop", [] {
  const auto context = init();
  StopSignals signals;
  for (int step = 0; step < 5; ++step) {
    if (step == 3 && context.rank() == 1) std::raise(SIGUSR1);
    EXPECT_EQ(signals.arrived(), step == 3 && context.rank() == 1 ? true : step > 3) << step;
    EXPECT_EQ(signals.should_stop(), step >= 3) << step;
  }
  EXPECT_TRUE(signals.arrived());
});

const Scenario agreement_of_a_group("ranks of a group agree to stop", [] {
  const auto context = init();
  const auto group = context.new_group({1});
  StopSignals signals;
  if (context.rank() == 1) std::raise(SIGTERM);
  EXPECT_EQ(context.rank() == 1 && signals.should_stop(group), context.rank() == 1);
  EXPECT_EQ(signals.arrived(), context.rank() == 1);
  EXPECT_TRUE(signals.should_stop());
});

const Scenario of_the_recorder("the signal of the recorder files is no stop signal", [] {
  const auto context = init();
  EXPECT_THAT(error_of<ArgumentError>([] {
                StopSignals({SIGTERM, SIGUSR2});
              }),
              HasSubstr("LOCKSTEP_RECORDER_SIGNAL"));
  const StopSignals other({SIGTERM, SIGUSR1});  // the failed one holds nothing
});

TEST(StopSignals, AreNotThatOfTheRecorder) {
  const TempFolder folder;
  expect_all_passed(run_ranks(of_the_recorder, {.world_size = 1,
                                                .env = {{"LOCKSTEP_RECORDER_SIGNAL", "SIGUSR2"},
                                                        {"LOCKSTEP_RECORDER_DIR", folder.path()}}}));
}

TEST(StopSignals, AreAgreedOnByAllRanks) { expect_all_passed(run_ranks(agreement, {.world_size = 3})); }
TEST(StopSignals, AreAgreedOnByAGroup) {
  expect_all_passed(run_ranks(agreement_of_a_group, {.world_size = 2}));
}

}  // namespace
}  // namespace lockstep::testing
