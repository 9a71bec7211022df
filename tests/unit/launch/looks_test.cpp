// SPDX-License-Identifier: BSD-3-Clause
#include "launch/looks.h"

#include <functional>
#include <future>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/sockets.h"
#include "launch/coordinator_client.h"
#include "launch/coordinator_server.h"
#include "launch/launch_view.h"
#include "launch/view_socket.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kAsker = 7;

Hello answer_to(int look, int asked) { return {.purpose = Purpose::answer, .look = look, .asked = asked}; }

// Looks of two nodes, 0 and 1, with a clock that advances only on request.
class LooksOfTwoNodes : public ::testing::Test {
 protected:
  std::string begin(int asker = kAsker) {
    return looks_.begin(
        asker, {{.node = 0, .host = "a", .ranks = 2}, {.node = 1, .host = "b", .first_rank = 2, .ranks = 3}},
        now_);
  }
  bool add(int asked, int parts, const std::string& text, int look = 1) {
    return looks_.add(answer_to(look, asked), {.parts = parts, .text = text}, now_);
  }

  // What the asker gets: "host text", or "host: problem", and "end".
  std::vector<std::string> told(int asker = kAsker) {
    std::vector<std::string> all;
    for (const auto& message : looks_.take_messages()) {
      if (message.to != asker) continue;
      if (std::holds_alternative<End>(message.what)) all.emplace_back("end");
      const auto* const seen = std::get_if<Seen>(&message.what);
      if (seen == nullptr) continue;
      all.push_back(seen->name + (seen->problem.empty() ? " " + seen->text : ": " + seen->problem));
    }
    return all;
  }

  Looks looks_;
  Looks::Clock::time_point now_ = Looks::Clock::now();
};

TEST_F(LooksOfTwoNodes, AskEachNodeAndPassOnAllParts) {
  EXPECT_EQ(begin(), "");
  const auto messages = looks_.take_messages();
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[1].to, 1);
  const auto& look = std::get<Look>(messages[1].what);
  EXPECT_EQ(std::pair(look.first_rank, look.ranks), std::pair(2, 3));
  EXPECT_TRUE(add(1, 2, "rank 2"));
  EXPECT_FALSE(add(0, 1, "rank 0"));
  EXPECT_THAT(told(), ElementsAre("b rank 2", "a rank 0"));
  EXPECT_FALSE(add(1, 2, "rank 3"));
  EXPECT_THAT(told(), ElementsAre("b rank 3", "end"));
  EXPECT_FALSE(add(1, 2, "rank 4")) << "nobody has asked any more";
  EXPECT_THAT(told(), IsEmpty());
}

TEST_F(LooksOfTwoNodes, DoNotHideOthersWhenOneDoesNotAnswer) {
  begin();
  add(0, 1, "rank 0");
  now_ += Looks::kLimit;
  EXPECT_EQ(looks_.next_tick(), now_);
  looks_.tick(now_);
  EXPECT_THAT(told(), ElementsAre("a rank 0", HasSubstr("b: its launcher did not answer within 2 s"), "end"));
  EXPECT_EQ(looks_.next_tick(), std::nullopt);
}

TEST_F(LooksOfTwoNodes, SayWhichNodeIsLost) {
  begin();
  looks_.lose(0, now_);
  looks_.fail(answer_to(1, 1), "its connection closed", now_);
  EXPECT_THAT(told(), ElementsAre("a: its launcher is lost", "b: its answer broke off: its connection closed",
                                  "end"));
}

TEST_F(LooksOfTwoNodes, AreFewAtATimeAndEndWithTheirAsker) {
  for (int asker = 10; asker < 10 + static_cast<int>(Looks::kMost); ++asker) EXPECT_EQ(begin(asker), "");
  EXPECT_THAT(begin(), HasSubstr("4 others look at the ranks of this run now"));
  looks_.lose(10, now_);
  EXPECT_EQ(begin(), "");
  EXPECT_THAT(looks_.begin(kAsker, {}, now_), HasSubstr("no ranks run now"));
}

// Runs a body in a thread until it is destroyed.
class InThread {
 public:
  explicit InThread(std::function<void(int stop)> body)
      : thread_([this, body = std::move(body)] { body(stop_.get()); }) {}
  ~InThread() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  InThread(const InThread&) = delete;
  InThread& operator=(const InThread&) = delete;

 private:
  UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  std::thread thread_;
};

// The coordinator of a run.
struct Serving {
  explicit Serving(const LaunchOptions& options) : server(options, *options.nodes) {}

  CoordinatorServer server;
  InThread thread{[this](int stop) { server.serve(stop); }};
};

// The view of a launcher.
struct Viewed {
  explicit Viewed(const LaunchOptions& options) : view(options) {}
  void look(const Look& look) const { EXPECT_EQ(::write(view.looks(), &look, sizeof(look)), sizeof(look)); }

  LaunchView view;
  InThread thread{[this](int stop) { view.serve(stop); }};
};

LaunchOptions options_of(const std::string& secret, std::uint16_t port) {
  LaunchOptions options;
  options.nodes =
      NodesOptions{.min_nodes = 2, .max_nodes = 2, .endpoint = {.host = "127.0.0.1", .port = port}};
  if (!secret.empty()) options.nodes->secret = Secret(secret);
  options.snapshot = [](int first, int) { return std::vector{"ranks from " + std::to_string(first)}; };
  return options;
}

constexpr const char* kSecret = "the secret of a test";

// The first message that fits.
template <class Kind>
Kind await(CoordinatorClient& client) {
  const Deadline deadline(30s);
  while (!deadline.expired()) {
    client.advance();
    while (auto message = client.receive()) {
      if (auto* const found = std::get_if<Kind>(&*message)) return std::move(*found);
    }
    std::vector<pollfd> events;
    client.watch(events);
    ::poll(events.data(), events.size(), 10);
  }
  ADD_FAILURE() << "the message has not come";
  return {};
}

std::string refusal_with(const std::string& secret_of_run, const std::string& secret, Purpose purpose) {
  const ReservedPort port;
  const auto of_run = options_of(secret_of_run, port.port());
  const Serving serving(of_run);
  const auto options = options_of(secret, port.port());
  TcpCoordinatorClient client(
      *options.nodes, {.node = {.shared = shared_options(options), .host = "c"}, .purpose = purpose}, "");
  return await<Refused>(client).reason;
}

TEST(LookingFromElsewhere, NeedsTheSecretOfTheRun) {
  for (const auto purpose : {Purpose::look, Purpose::answer}) {
    EXPECT_THAT(refusal_with(kSecret, "another secret of it", purpose),
                HasSubstr("does not know the secret"));
    EXPECT_THAT(refusal_with(kSecret, "", purpose), HasSubstr("does not know the secret"));
    EXPECT_THAT(refusal_with("", "", purpose), HasSubstr("this run has no secret"));
  }
}

TEST(LookingFromElsewhere, TakesOnlyProcessesOfTheOwnUser) {
  const auto listener = listen_for_views();
  ASSERT_TRUE(listener);
  EXPECT_FALSE(listen_for_views()) << "the name is taken";
  EXPECT_TRUE(can_be_asked(::getpid()));
  EXPECT_TRUE(accept_view(listener.get()));
  EXPECT_FALSE(can_be_asked(::getpid(), ::geteuid() + 1));
  EXPECT_FALSE(accept_view(listener.get(), ::geteuid() + 1));
  EXPECT_FALSE(can_be_asked(1));
}

std::vector<HostView> ask() {
  return LauncherQuestion(::getpid(), Deadline(30s)).wait(Deadline(30s)).value();
}

TEST(LookingFromElsewhere, GoesThroughTheLaunchersAndTheCoordinator) {
  const ReservedPort port;
  const auto options = options_of(kSecret, port.port());
  const Serving serving(options);
  std::vector<std::unique_ptr<TcpCoordinatorClient>> nodes;
  for (const char* host : {"a", "b"}) {
    nodes.push_back(std::make_unique<TcpCoordinatorClient>(
        *options.nodes, Hello{.node = {.shared = shared_options(options), .ranks = 3, .host = host}},
        "127.0.0.1"));
    (void)await<Welcome>(*nodes.back());
  }
  (void)await<Reserve>(*nodes[0]);
  const Viewed viewed(options);
  auto asking = std::async(std::launch::async, ask);
  viewed.look(await<Look>(*nodes[0]));
  (void)await<Look>(*nodes[1]);
  nodes.pop_back();
  const auto hosts = asking.get();
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_THAT(hosts[0].parts, ElementsAre("ranks from 0"));
  EXPECT_THAT(hosts[0].problem, IsEmpty());
  EXPECT_EQ(hosts[1].name, "b");
  EXPECT_THAT(hosts[1].parts, IsEmpty());
  EXPECT_THAT(hosts[1].problem, HasSubstr("its launcher is lost"));
}

TEST(LookingFromElsewhere, ShowsThisHostIfNoOtherCanBeAsked) {
  for (const char* secret : {"", kSecret}) {
    const ReservedPort port;
    const auto options = options_of(secret, port.port());
    const Serving of_a_run_that_waits_for_nodes(options);
    const Viewed viewed(options);
    const auto hosts = ask();
    ASSERT_EQ(hosts.size(), 2U);
    EXPECT_THAT(hosts[0].parts, ElementsAre("ranks from 0"));
    EXPECT_THAT(hosts[1].problem, HasSubstr(*secret == '\0' ? "has no secret" : "no ranks run now"));
  }
}

}  // namespace
}  // namespace lockstep::launch
