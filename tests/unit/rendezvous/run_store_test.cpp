// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/run_store.h"

#include <array>
#include <atomic>
#include <csignal>
#include <limits>
#include <numeric>
#include <random>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/sockets.h"
#include "launch/run_store_server.h"
#include "rendezvous/generations.h"
#include "rendezvous/remote_store.h"
#include "support/error_of.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using rendezvous::Generations;
using rendezvous::RemoteStore;
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

// The launcher of node 0, in a thread.
class ServedStore {
 public:
  ServedStore() : server_(10s) {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::vector<pollfd> events;
        server_.watch(events);
        ::poll(events.data(), events.size(), 1);
        server_.advance(events);
      }
    });
  }
  c10::intrusive_ptr<RemoteStore> connect() const {
    return c10::make_intrusive<RemoteStore>(rendezvous::Endpoint{"127.0.0.1", server_.port()}, token(),
                                            Deadline(10s));
  }
  UniqueFd connect_stranger() const {
    auto socket = connect_to(resolve_now("127.0.0.1", server_.port()).addresses.front(), Deadline(10s));
    EXPECT_TRUE(socket);
    return socket;
  }
  int port() const { return server_.port(); }
  std::string token() const { return launch::RunStoreServer::token_of(server_.token(), 0, 0); }

 private:
  launch::RunStoreServer server_;
  std::jthread thread_;
};

void send_all(const UniqueFd& socket, const std::string& text) {
  ASSERT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

// A line, without its newline.
std::string line_from(const UniqueFd& socket) {
  std::string line;
  char byte = 0;
  while (wait_for(socket.get(), POLLIN, Deadline(20s)) && ::recv(socket.get(), &byte, 1, 0) == 1 &&
         byte != '\n')
    line += byte;
  return line;
}

std::string received_until_closed(const UniqueFd& socket) {
  std::string text;
  std::array<char, 4096> bytes;
  while (true) {
    if (!wait_for(socket.get(), POLLIN, Deadline(20s))) return "it is open";
    const auto count = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) return text;
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

class StoreOfRun : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OnSeveralHosts, StoreOfRun, ::testing::Bool());

TEST_P(StoreOfRun, AnswersAsHashStore) {
  const ServedStore served;
  const c10::intrusive_ptr<c10d::Store> of_host = c10::make_intrusive<RunStore>(new_memory());
  const c10::intrusive_ptr<c10d::Store> of_several = served.connect();
  const auto ours = GetParam() ? of_several : of_host;
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

TEST(RunStore, AThreadWaitsForAKeyThatAnotherDeletesMeanwhile) {
  RunStore store(new_memory());
  std::atomic<bool> has_ended{false};
  const std::jthread other([&] {
    for (int i = 0; i < 20'000; ++i) {
      store.set("key", "value");
      store.deleteKey("key");
    }
    store.set("key", "value");
    has_ended = true;
  });
  while (!has_ended) ASSERT_EQ(store.get_to_str("key"), "value");
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

TEST(RemoteStore, CarriesAnyBytesToAllThatAreConnected) {
  const ServedStore served;
  const auto one = served.connect();
  const auto other = one->clone();
  RemoteStore::Bytes all(256);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  const std::string key("a key\n\0of bytes", 16);
  one->set(key, all);
  EXPECT_EQ(other->get(key), all);
  other->set("empty", RemoteStore::Bytes());
  EXPECT_TRUE(one->get("empty").empty());
}

TEST(RemoteStore, NamesWhatItCannotDo) {
  const ServedStore served;
  const auto store = served.connect();
  store->set("most", std::to_string(std::numeric_limits<std::int64_t>::max()));
  EXPECT_THAT([&] { store->add("most", 1); },
              ::testing::ThrowsMessage<Error>(HasSubstr("\"most\" is no number to which add() could add 1")));
  EXPECT_THAT([&] { store->set("long", std::string(3'000'000, 'a')); },
              ::testing::ThrowsMessage<Error>(HasSubstr("but a request has at most")));
  EXPECT_EQ(store->add("sum", 1), 1);
}

TEST(RemoteStore, AWaitEndsWhenAnotherSetsTheKeys) {
  const ServedStore served;
  const auto waits = served.connect();
  std::jthread sets([other = served.connect()] {
    other->set("a", "1");
    other->set("b", "2");
  });
  waits->wait({"a", "b"}, 50s);
  EXPECT_EQ(waits->get_to_str("b"), "2");
}

TEST(RemoteStore, NamesTheLauncherThatIsLost) {
  auto served = std::make_unique<ServedStore>();
  const auto store = served->connect();
  const auto port = served->port();
  store->set("a", "1");
  served.reset();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        [&] { store->add("sum", 1); },
        ::testing::ThrowsMessage<Error>(::testing::HasSubstr(fmt::format(
            "the launcher of node 0, which serves the store of the run at 127.0.0.1:{}, is lost", port))));
  }
  EXPECT_THAT(
      [&] {
        RemoteStore(rendezvous::Endpoint{"127.0.0.1", port}, "", Deadline(20ms));
      },
      ::testing::ThrowsMessage<RendezvousError>(::testing::HasSubstr("cannot be reached at")));
}

TEST(RunStoreServer, DropsForeignPrograms) {
  const ServedStore served;
  const auto known = served.connect();
  known->set("a", "1");
  for (const std::string& text :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string("set 0 x x62 x61\n"), std::string(5000, '0')}) {
    const auto socket = served.connect_stranger();
    send_all(socket, text);
    EXPECT_EQ(received_until_closed(socket), "") << text;
  }
  EXPECT_EQ(known->get_to_str("a"), "1");
  for (const char* line :
       {"", "set 0 x x", "set 0 x x 61", "set 0 x x6 x61", "set y x x x61", "put 0 x x x61"})
    EXPECT_THROW(launch::decode_store_request(line), LaunchError) << line;
  for (const char* line : {"", "done", "done 0 x 1", "lost 0 x"})
    EXPECT_THROW(launch::decode_store_reply(line), LaunchError) << line;
}

TEST(RunStoreServer, AsksForItsTokenInEachAttempt) {
  const ServedStore before;
  const ServedStore served;
  EXPECT_NE(before.token(), served.token());
  const rendezvous::Endpoint server{"127.0.0.1", static_cast<std::uint16_t>(served.port())};
  for (const auto& token :
       {before.token(), std::string(), "0" + served.token(), served.token() + ".0", served.token() + "x"}) {
    EXPECT_THAT(([&] { RemoteStore(server, token, Deadline(10s)); }),
                ::testing::ThrowsMessage<Error>(HasSubstr("is lost (its connection closed)")));
  }
}

// Another launcher has taken the place of their node.
TEST(RunStoreServer, RefusesTheRanksOfALostLauncher) {
  launch::RunStoreServer server(10s);
  const auto serve = [&] {
    for (int i = 0; i < 3; ++i) {
      std::vector<pollfd> events;
      server.watch(events);
      ::poll(events.data(), events.size(), 1'000);
      server.advance(events);
    }
  };
  const auto show = [&](int node_rank, int epoch) {
    auto socket = connect_to(resolve_now("127.0.0.1", server.port()).addresses.front(), Deadline(10s));
    send_all(socket, launch::RunStoreServer::token_of(server.token(), node_rank, epoch) + "\n");
    serve();
    return socket;
  };
  const auto other = show(1, 0);
  const auto stale = show(2, 0);
  EXPECT_EQ(line_from(other), "done 0");
  EXPECT_EQ(line_from(stale), "done 0");
  server.fence(2, 1);
  EXPECT_EQ(received_until_closed(stale), "");
  EXPECT_EQ(received_until_closed(show(2, 0)), "");
  EXPECT_EQ(line_from(show(2, 1)), "done 0");
  send_all(other, "check 0 x x x61\n");
  serve();
  EXPECT_EQ(line_from(other), "done 0");
}

// Else its replies, of which it reads none, could fill the memory of the launcher.
TEST(RunStoreServer, DropsAClientThatDoesNotWaitForReplies) {
  const ServedStore served;
  const auto known = served.connect();
  known->set("a", std::string(100'000, 'a'));
  const auto socket = served.connect_stranger();
  send_all(socket, served.token() + "\n");
  EXPECT_EQ(line_from(socket), "done 0");
  const std::string request = "get 0 x x x61\n";
  std::string many;
  for (int i = 0; i < 1000; ++i) many += request;
  send_all(socket, many);
  EXPECT_LE(received_until_closed(socket).size(), 300'000U);
  EXPECT_EQ(known->get_to_str("a").size(), 100'000U);
}

TEST(RunStoreServer, DropsTheOldestOfManyStrangers) {
  const ServedStore served;
  const auto known = served.connect();
  const auto oldest = served.connect_stranger();
  std::vector<UniqueFd> others;
  for (int i = 0; i < 200; ++i) others.push_back(served.connect_stranger());
  EXPECT_EQ(received_until_closed(oldest), "");
  known->set("a", "1");
  EXPECT_EQ(served.connect()->get_to_str("a"), "1");
}

// The launcher neither ends nor takes a whole core; it accepts the rank when there is a descriptor again.
TEST(RunStoreServer, WaitsForADescriptor) {
  launch::RunStoreServer server(10s);
  const auto socket = connect_to(resolve_now("127.0.0.1", server.port()).addresses.front(), Deadline(10s));
  ASSERT_TRUE(socket);
  std::vector<pollfd> events;
  server.watch(events);
  ASSERT_EQ(::poll(events.data(), events.size(), 10'000), 1);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  server.advance(events);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  events.clear();
  server.watch(events);
  EXPECT_EQ(events.front().fd, -1);
  EXPECT_GT(server.poll_timeout(), 0ms);
  while (events.front().fd == -1) {
    ::poll(nullptr, 0, static_cast<int>(server.poll_timeout().count()));
    events.clear();
    server.watch(events);
  }
  ASSERT_EQ(::poll(events.data(), events.size(), 10'000), 1);
  server.advance(events);
  events.clear();
  server.watch(events);
  EXPECT_EQ(events.size(), 2U);
}

// One of them has its own memory, as on another host.
TEST(Generations, RanksOfSeveralHostsMeetThroughTheStore) {
  const ServedStore served;
  const auto of_host = [&](int rank) {
    const auto port = static_cast<std::uint16_t>(served.port());
    const RunMemory::Share share{
        .first_rank = rank, .ranks = 1, .store_port = port, .store_token = served.token()};
    return std::make_shared<const RunMemory>(RunMemory::create(2, false, share));
  };
  const auto first = of_host(0);
  const auto second = of_host(1);
  Generations one(first, served.connect(), 0);
  one.begin_running();
  one.propose_after(0);
  std::jthread late([&] {
    const Generations other(second, served.connect(), 1);
    EXPECT_TRUE(other.is_proposed());
    EXPECT_EQ(other.phase(), RunPhase::running);
    EXPECT_EQ(other.meet("handle 1", 50s).generation, 1U);
  });
  EXPECT_THAT(one.meet("handle 0", 50s).handles, ::testing::ElementsAre("handle 0", "handle 1"));
  late.join();
  one.enter(1);
  EXPECT_FALSE(one.is_proposed());
  one.set_phase(RunPhase::finished);
  const Generations other(second, served.connect(), 1);
  EXPECT_EQ(other.phase(), RunPhase::finished);
  EXPECT_EQ(second->state().phase, RunPhase::finished);
  EXPECT_EQ(second->store_token(), served.token());
  EXPECT_GE(first->commits(0), 0);
  EXPECT_GE(second->commits(1), 0);
}

// A rank that has asked the store before another one ends the run writes its answer late.
TEST(Generations, ThePhaseOfAHostDoesNotGoBack) {
  const ServedStore served;
  const RunMemory::Share share{.ranks = 2, .store_port = static_cast<std::uint16_t>(served.port())};
  const auto memory = std::make_shared<const RunMemory>(RunMemory::create(2, false, share));
  const Generations own(memory, served.connect(), 0);
  own.begin_running();
  memory->state().phase = RunPhase::finished;
  EXPECT_EQ(own.phase(), RunPhase::finished);
  memory->state().phase = RunPhase::starting;
  EXPECT_EQ(own.phase(), RunPhase::running);
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
  EXPECT_EQ(Generations(memory, c10::make_intrusive<RunStore>(memory), 1, true).current(), 2U);
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
