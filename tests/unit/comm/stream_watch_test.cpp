// SPDX-License-Identifier: BSD-3-Clause
#include "comm/stream_watch.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/backends/backends.h>
#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "comm/group_state.h"
#include "graphs/graph_phase.h"
#include "graphs/revocable_graph.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kLong = 60s;

// A call that runs on a device until the test ends it; waiting for it does not block the host.
class StreamWork : public c10d::Work {
 public:
  void end(std::exception_ptr failure = nullptr) { finish(std::move(failure)); }
  bool wait(std::chrono::milliseconds) override { return true; }
  bool isCompleted() override {
    ++polls;
    if (broken_) throw std::runtime_error("CUDA error: device-side assert triggered");
    return Work::isCompleted();
  }
  void break_device() { broken_ = true; }

  std::atomic<int> polls = 0;

 private:
  std::atomic<bool> broken_ = false;
};

class StreamBackend : public backends::FakeBackend, public comm::StreamBackend {
 public:
  StreamBackend() : FakeBackend(0, 2) {}
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override {
    last = c10::make_intrusive<StreamWork>();
    return last;
  }
  bool ends_on_stream(const c10d::Work& work) const override {
    return dynamic_cast<const StreamWork*>(&work) != nullptr;
  }
  WorkPtr observer_of(const WorkPtr& work) const override { return capturing ? WorkPtr() : work; }
  void free_tensors(c10d::Work& work) const override { freed = &work; }
  bool waits_on_host() const override { return waiting_on_host; }
  WorkPtr mark_stream() const override {
    replayed = c10::make_intrusive<StreamWork>();
    return replayed;
  }
  void prepare_observing_thread() const override { ++prepared; }
  void abort() override {
    if (last) last->end(std::make_exception_ptr(std::runtime_error("aborted")));
    aborted.set_value();
  }
  void shutdown() override { shut_down = true; }

  c10::intrusive_ptr<StreamWork> last;
  mutable c10::intrusive_ptr<StreamWork> replayed;
  bool capturing = false;
  bool waiting_on_host = false;
  mutable c10d::Work* freed = nullptr;
  mutable std::atomic<int> prepared = 0;
  std::promise<void> aborted;
  bool shut_down = false;
};

struct WatchedGroup {
  c10::intrusive_ptr<StreamBackend> backend = c10::make_intrusive<StreamBackend>();
  ProcessGroup group;

  explicit WatchedGroup(std::chrono::milliseconds timeout = kLong)
      : group(backend, {.name = "gpus", .timeout = timeout, .traits = backends::FakeBackend::traits()}) {}

  CallState state_of_last() const { return group.recent_calls().back().state; }
  void await_abort() const {
    ASSERT_EQ(backend->aborted.get_future().wait_for(kLong), std::future_status::ready);
  }
};

TEST(StreamWatch, RecordsTheEndOfACallWithoutAWait) {
  WatchedGroup gpus;
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  work.wait();
  EXPECT_FALSE(work.is_completed()) << "only the stream waits";
  EXPECT_EQ(gpus.state_of_last(), CallState::issued);
  gpus.backend->last->end();
  EXPECT_TRUE(comm::state_of(gpus.group).watch()->drain(kLong));
  EXPECT_EQ(gpus.state_of_last(), CallState::completed);
  EXPECT_TRUE(work.is_completed());
  EXPECT_EQ(gpus.backend->prepared, 1);
}

TEST(StreamWatch, AFailureEndsAllCallsAndIsThrownByTheNext) {
  WatchedGroup gpus;
  const auto first = gpus.group.all_reduce_async(at::ones({3}));
  gpus.backend->last->end(std::make_exception_ptr(std::runtime_error("Connection reset by peer")));
  gpus.await_abort();
  EXPECT_EQ(gpus.state_of_last(), CallState::failed);
  EXPECT_THAT([&] { gpus.group.all_reduce(at::ones({3})); },
              ThrowsMessage<PeerLost>(AllOf(HasSubstr("all_reduce #1 of Float[3]"), HasSubstr("group gpus"),
                                            HasSubstr("stream_watch_test.cpp"))));
  EXPECT_THAT([&] { gpus.group.barrier(); }, ::testing::Throws<PeerLost>()) << "and at every later one";
}

TEST(StreamWatch, WaitThrowsAFailure) {
  WatchedGroup gpus;
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  gpus.backend->last->end(std::make_exception_ptr(std::runtime_error("unhandled system error")));
  gpus.await_abort();
  EXPECT_THAT([&] { work.wait(); }, ThrowsMessage<Error>(HasSubstr("unhandled system error")));
}

TEST(StreamWatch, ACallThatDoesNotEndIsATimeout) {
  WatchedGroup gpus(100ms);
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  gpus.await_abort();
  EXPECT_THAT([&] { work.wait(); },
              ThrowsMessage<TimeoutError>(HasSubstr("has not ended on the device after 100 ms")));
}

TEST(StreamWatch, CallsEndInAnyOrder) {
  WatchedGroup gpus;
  const auto first = gpus.group.all_reduce_async(at::ones({3}));
  const auto first_work = gpus.backend->last;
  const auto second = gpus.group.all_reduce_async(at::ones({3}));
  gpus.backend->last->end();
  const auto is_noted = [&] { return gpus.state_of_last() == CallState::completed; };
  while (!is_noted()) std::this_thread::yield();
  EXPECT_EQ(gpus.group.recent_calls().front().state, CallState::issued);
  first_work->end();
  EXPECT_TRUE(comm::state_of(gpus.group).watch()->drain(kLong));
}

// Two calls on one group, captured; what has to be done at each replay.
std::vector<std::function<void()>> capture_two_calls(const WatchedGroup& gpus) {
  const GraphPhaseScope capturing(GraphPhase::capture);
  gpus.backend->capturing = true;
  for (int i = 0; i < 2; ++i) gpus.group.all_reduce_async(at::ones({3})).wait();
  gpus.backend->capturing = false;
  return take_replay_actions();
}

TEST(StreamWatch, CapturedCallsAreWatchedAtEachReplay) {
  WatchedGroup gpus;
  const auto actions = capture_two_calls(gpus);
  EXPECT_TRUE(comm::state_of(gpus.group).watch()->drain(kLong)) << "nothing is under way";
  ASSERT_EQ(actions.size(), 1) << "once for each group";
  actions[0]();
  const auto first = gpus.backend->replayed;
  actions[0]();
  gpus.backend->replayed->end();
  first->end();
  EXPECT_TRUE(comm::state_of(gpus.group).watch()->drain(kLong));
}

TEST(StreamWatch, AHungReplayIsReportedByTheNext) {
  WatchedGroup gpus(50ms);
  const auto actions = capture_two_calls(gpus);
  actions.at(0)();
  gpus.await_abort();
  EXPECT_THAT([&] { actions[0](); }, ThrowsMessage<TimeoutError>(HasSubstr("all_reduce #1 of Float[3]")));
}

TEST(StreamWatch, AReplayAfterTheEndOfTheGroupIsIgnored) {
  std::vector<std::function<void()>> actions;
  {
    const WatchedGroup gpus;
    actions = capture_two_calls(gpus);
  }
  actions.at(0)();
}

class CountedGraph : public DeviceGraph {
 public:
  explicit CountedGraph(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~CountedGraph() override { --alive_; }
  CountedGraph(const CountedGraph&) = delete;
  CountedGraph& operator=(const CountedGraph&) = delete;
  void replay() override {}

 private:
  std::atomic<int>& alive_;
};

// A graph that holds two calls of the group, as a GraphedStep would have it.
std::shared_ptr<RevocableGraph> capture_graph(const WatchedGroup& gpus, std::atomic<int>& alive) {
  const GraphPhaseScope capturing(GraphPhase::capture);
  gpus.backend->capturing = true;
  for (int i = 0; i < 2; ++i) gpus.group.all_reduce_async(at::ones({3})).wait();
  gpus.backend->capturing = false;
  auto graph = graph_under_capture();
  graph->set(std::make_unique<CountedGraph>(alive));
  return graph;
}

TEST(StreamWatch, GraphsAreDestroyedWhenACallFails) {
  WatchedGroup gpus;
  std::atomic<int> alive = 0;
  const auto graph = capture_graph(gpus, alive);
  graph->replay();
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  gpus.backend->last->break_device();
  gpus.await_abort();
  EXPECT_THAT([&] { work.wait(); }, ThrowsMessage<Error>(HasSubstr("device-side assert")));
  EXPECT_THAT(
      [&] {
        while (true) graph->replay();
      },
      ThrowsMessage<Error>(HasSubstr("device-side assert")));
  EXPECT_EQ(alive, 0) << "which a communicator waits for";
}

TEST(StreamWatch, GraphsAreDestroyedBeforeTheGroupCloses) {
  std::atomic<int> alive = 0;
  std::shared_ptr<RevocableGraph> graph;
  {
    const WatchedGroup gpus;
    graph = capture_graph(gpus, alive);
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
  EXPECT_THAT([&] { graph->replay(); }, ThrowsMessage<Error>(HasSubstr("which is closed")));
}

TEST(StreamWatch, ADestroyedGraphIsIgnored) {
  std::atomic<int> alive = 0;
  const WatchedGroup gpus;
  capture_graph(gpus, alive);
  EXPECT_EQ(alive, 0);
}

TEST(StreamWatch, AFailedDeviceIsReported) {
  WatchedGroup gpus;
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  gpus.backend->last->break_device();
  gpus.await_abort();
  EXPECT_THAT([&] { work.wait(); }, ThrowsMessage<Error>(HasSubstr("device-side assert")));
}

TEST(StreamWatch, AWaitWithALimitBlocksAndEndsNothing) {
  WatchedGroup gpus;
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  EXPECT_THAT([&] { work.wait(20ms); },
              ThrowsMessage<TimeoutError>(HasSubstr("not ended on the device after 20 ms")));
  gpus.backend->last->end();
  work.wait(kLong);
  EXPECT_TRUE(comm::state_of(gpus.group).watch()->drain(kLong));
}

TEST(StreamWatch, AWaitBlocksIfTheBackendIsToWaitOnTheHost) {
  WatchedGroup gpus;
  gpus.backend->waiting_on_host = true;
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  std::thread device([&] {
    while (gpus.backend->last->polls < 5) std::this_thread::yield();
    gpus.backend->last->end();
  });
  work.wait();
  EXPECT_TRUE(work.is_completed());
  device.join();
  capture_two_calls(gpus);  // whose device does not run them now
}

TEST(StreamWatch, AWaitOnTheHostThrowsAFailure) {
  WatchedGroup gpus(100ms);
  gpus.backend->waiting_on_host = true;
  auto work = gpus.group.all_reduce_async(at::ones({3}));
  EXPECT_THAT([&] { work.wait(); },
              ThrowsMessage<TimeoutError>(HasSubstr("has not ended on the device after 100 ms")));
}

TEST(StreamWatch, AWaitWithALimitThrowsTheFailureThatEndsItsCall) {
  WatchedGroup gpus;
  const auto first = gpus.group.all_reduce_async(at::ones({3}));
  const auto first_work = gpus.backend->last;
  auto second = gpus.group.all_reduce_async(at::ones({3}));
  std::thread device([&] {
    while (gpus.backend->last->polls < 5) std::this_thread::yield();
    first_work->end(std::make_exception_ptr(std::runtime_error("unhandled system error")));
  });
  EXPECT_THAT([&] { second.wait(kLong); }, ThrowsMessage<Error>(HasSubstr("unhandled system error")));
  device.join();
}

TEST(StreamWatch, TensorsAreFreedWhenTheCallerDropsACallUnderWay) {
  WatchedGroup gpus;
  {
    auto work = gpus.group.all_reduce_async(at::ones({3}));
    work.wait();
    EXPECT_EQ(gpus.backend->freed, nullptr);
  }
  EXPECT_EQ(gpus.backend->freed, gpus.backend->last.get());
  gpus.backend->last->end();
}

TEST(StreamWatch, AnOrderlyEndWaitsForTheDevice) {
  WatchedGroup gpus;
  const auto work = gpus.group.all_reduce_async(at::ones({3}));
  std::thread device([&] { gpus.backend->last->end(); });
  gpus.group.close();
  EXPECT_TRUE(gpus.backend->shut_down);
  device.join();
}

TEST(StreamWatch, AnEndByAnExceptionDoesNotWait) {
  const auto backend = c10::make_intrusive<StreamBackend>();
  try {
    const ProcessGroup group(backend, {.timeout = kLong, .traits = backends::FakeBackend::traits()});
    const auto work = group.all_reduce_async(at::ones({3}));
    throw std::logic_error("of the user");
  } catch (const std::logic_error&) {
  }
  EXPECT_EQ(backend->aborted.get_future().wait_for(0s), std::future_status::ready);
  EXPECT_FALSE(backend->shut_down);
}

}  // namespace
}  // namespace lockstep
