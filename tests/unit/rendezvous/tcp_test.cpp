// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/tcp.h"

#include <array>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/sockets.h"
#include "support/error_of.h"
#include "unit/base/child.h"

namespace lockstep::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Value;

rlim_t soft_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

void serve(int world_size) { serve_store(listen_on(0, "127.0.0.1"), "127.0.0.1", world_size, Deadline(60s)); }

// In processes of their own, because a hard limit cannot be raised again.
TEST(StoreServer, RaisesItsLimitOfFileDescriptorsForManyRanks) {
  lockstep::testing::Child child([] {
    const rlimit low{.rlim_cur = 300, .rlim_max = 1500};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return false;
    serve(10);
    if (soft_limit() != 300) return false;
    serve(1000);
    return soft_limit() == 1500;
  });
  EXPECT_TRUE(child.passed());
}

TEST(StoreServer, ReportsAHardLimitThatIsTooLow) {
  lockstep::testing::Child child([] {
    const rlimit low{.rlim_cur = 300, .rlim_max = 1500};
    if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return false;
    const auto error = lockstep::testing::error_of<RendezvousError>([] { serve(4000); });
    return Value(error, AllOf(HasSubstr("4000 ranks"), HasSubstr("hard limit is 1500"), HasSubstr("ulimit")));
  });
  EXPECT_TRUE(child.passed());
}

// A server on a free port that sends `greeting` to each client.
class ForeignServer {
 public:
  explicit ForeignServer(std::string greeting)
      : listener_(listen_on(0, "127.0.0.1")), greeting_(std::move(greeting)) {
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  Endpoint endpoint() const { return {"127.0.0.1", listener_.port}; }

 private:
  void serve(const std::stop_token& stop) const {
    while (!stop.stop_requested()) {
      if (!wait_for(listener_.socket.get(), POLLIN, Deadline(10ms))) continue;
      const UniqueFd client(::accept(listener_.socket.get(), nullptr, nullptr));
      ::send(client.get(), greeting_.data(), greeting_.size(), MSG_NOSIGNAL);
      std::array<char, 100> request{};
      if (wait_for(client.get(), POLLIN, Deadline(1s)))
        ::recv(client.get(), request.data(), request.size(), 0);
    }
  }

  Listener listener_;
  std::string greeting_;
  std::jthread thread_;
};

std::string error_of_joining(const Endpoint& server, std::chrono::milliseconds timeout) {
  const QuietC10d quiet;
  return lockstep::testing::error_of<RendezvousError>([&] { join_store(server, 1, 2, Deadline(timeout)); });
}

TEST(ForeignServers, AreNamedWithTheirAnswerLongBeforeTheTimeout) {
  const ForeignServer server("SSH-2.0-OpenSSH_9.2\r\n");
  EXPECT_THAT(error_of_joining(server.endpoint(), 3600s),
              AllOf(HasSubstr("rank 1 of 2: another program listens at 127.0.0.1:"),
                    HasSubstr("\"SSH-2.0-OpenSSH_9.2\""), HasSubstr("Choose another MASTER_PORT")));
}

TEST(ForeignServers, ThatAreSilentAreSuspectedAtTheTimeout) {
  // Connections to it wait in its queue.
  const auto listener = listen_on(0, "127.0.0.1");
  EXPECT_THAT(error_of_joining(Endpoint{"127.0.0.1", listener.port}, 300ms),
              AllOf(HasSubstr("does not answer as the store of rank 0"), HasSubstr("within 300 ms"),
                    HasSubstr("is another program using this MASTER_PORT")));
}

TEST(ForeignServers, AStoreIsNone) {
  const QuietC10d quiet;
  auto listener = listen_on(0, "127.0.0.1");
  const Endpoint server{"127.0.0.1", listener.port};
  const auto store = serve_store(std::move(listener), "127.0.0.1", 2, Deadline(60s));
  EXPECT_EQ(answer_of_foreign_server(server), "");
  EXPECT_EQ(join_store(server, 1, 2, Deadline(60s))->getTimeout(), 60s);
}

}  // namespace
}  // namespace lockstep::rendezvous
