// SPDX-License-Identifier: BSD-3-Clause
#include "base/fd_passing.h"

#include <array>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/shared_memory.h"
#include "unit/base/child.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr auto kLong = 30s;
constexpr auto kShort = 20ms;

struct Pair {
  UniqueFd here;
  UniqueFd there;
};

Pair connected() {
  std::array<int, 2> sockets{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
  return {UniqueFd(sockets[0]), UniqueFd(sockets[1])};
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(FdPassing, AChildSendsItsMemory) {
  const auto listener = listen_locally();
  testing::Child child([&] {
    const auto memory = SharedMemory::create("test", 4096);
    memory.data()[100] = std::byte{42};
    const auto connection = connect_locally(listener.name, Deadline(kLong));
    const std::array fds = {memory.fd()};
    send_fds(connection.get(), 17, fds, Deadline(kLong));
    // Until the other side has answered, through the memory and with a message.
    return receive_fds(connection.get(), Deadline(kLong)).number == 18 && memory.data()[101] == std::byte{43};
  });
  const auto connection = accept_local(listener, Deadline(kLong));
  ASSERT_TRUE(connection);
  auto message = receive_fds(connection.get(), Deadline(kLong));
  EXPECT_EQ(message.number, 17U);
  ASSERT_EQ(message.fds.size(), 1U);
  const auto memory = SharedMemory::map(std::move(message.fds[0]));
  EXPECT_EQ(memory.data()[100], std::byte{42});
  memory.data()[101] = std::byte{43};
  send_fds(connection.get(), 18, {}, Deadline(kLong));
  EXPECT_TRUE(child.passed());
}

TEST(FdPassing, AConnectionOfAnotherUserIsRejected) {
  const auto listener = listen_locally();
  const auto connection = connect_locally(listener.name, Deadline(kLong));
  EXPECT_FALSE(accept_local(listener, Deadline(kShort), ::geteuid() + 1));
  EXPECT_THROW((void)receive_fds(connection.get(), Deadline(kLong)), PeerLost);
}

// Where the test may not become another user, it says that it takes another for the right one.
TEST(FdPassing, AProcessOfAnotherUserIsRejectedByBothSides) {
  constexpr uid_t kOther = 65534;
  const uid_t own = ::geteuid();
  const auto listener = listen_locally();
  testing::Child child([&] {
    const uid_t user = ::setuid(kOther) == 0 ? ::geteuid() : own + 1;
    EXPECT_THAT([&] { (void)connect_locally(listener.name, Deadline(kLong), user); },
                ThrowsMessage<Error>(HasSubstr("belongs to another user")));
    return !::testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.passed());
  EXPECT_FALSE(accept_local(listener, Deadline(kShort), own == 0 ? own : own + 1));
}

TEST(FdPassing, MemoryOutlivesTheChild) {
  const auto sockets = connected();
  testing::Child child([&] {
    const auto memory = SharedMemory::create("test", 4096);
    memory.data()[0] = std::byte{1};
    const std::array fds = {memory.fd()};
    send_fds(sockets.there.get(), 0, fds, Deadline(kLong));
    return true;
  });
  ASSERT_TRUE(child.passed());
  auto message = receive_fds(sockets.here.get(), Deadline(kLong));
  ASSERT_EQ(message.fds.size(), 1U);
  EXPECT_EQ(SharedMemory::map(std::move(message.fds[0])).data()[0], std::byte{1});
}

TEST(FdPassing, EachMessageKeepsItsNumberAndItsDescriptorsInOrder) {
  const auto sockets = connected();
  std::array<UniqueFd, 8> files;
  std::vector<int> fds;
  for (std::size_t i = 0; i < files.size(); ++i) {
    files.at(i).reset(::memfd_create("test", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(files.at(i).get(), static_cast<off_t>(i)), 0);
    fds.push_back(files.at(i).get());
  }
  for (std::uint32_t count = 0; count <= 8; ++count) {
    send_fds(sockets.here.get(), 1000 + count, std::span(fds).first(count), Deadline(kLong));
  }
  for (std::uint32_t count = 0; count <= 8; ++count) {
    const auto message = receive_fds(sockets.there.get(), Deadline(kLong));
    EXPECT_EQ(message.number, 1000 + count);
    ASSERT_EQ(message.fds.size(), count);
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(::lseek(message.fds[i].get(), 0, SEEK_END), static_cast<off_t>(i));
      EXPECT_NE(::fcntl(message.fds[i].get(), F_GETFD) & FD_CLOEXEC, 0);
    }
  }
  for (const int fd : fds) EXPECT_TRUE(is_open(fd));
}

TEST(FdPassing, TooManyDescriptorsForOneMessageAreAnError) {
  const auto sockets = connected();
  const std::vector<int> fds(9, sockets.here.get());
  EXPECT_THROW(send_fds(sockets.here.get(), 0, fds, Deadline(kLong)), Error);
}

TEST(FdPassing, DescriptorsBeyondTheProcessLimitAreAnError) {
  const auto sockets = connected();
  const std::array fds = {STDIN_FILENO, STDOUT_FILENO};
  send_fds(sockets.here.get(), 0, fds, Deadline(kLong));
  testing::Child child([&] {
    const UniqueFd lowest_free(::dup(STDIN_FILENO));
    const auto limit = static_cast<rlim_t>(lowest_free.get()) + 1;  // no room for the second
    const rlimit files{.rlim_cur = limit, .rlim_max = limit};
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0) return false;
    try {
      receive_fds(sockets.there.get(), Deadline(kLong));
    } catch (const Error& error) {
      return std::string(error.what()).find("ulimit -n") != std::string::npos;
    }
    return false;
  });
  EXPECT_TRUE(child.passed());
}

TEST(FdPassing, AMessageOfADifferentSizeIsAnError) {
  const auto sockets = connected();
  for (const std::size_t bytes : {1, 3, 5, 100}) {
    const std::string text(bytes, 'x');
    ASSERT_EQ(::send(sockets.here.get(), text.data(), bytes, 0), static_cast<ssize_t>(bytes));
    EXPECT_THAT([&] { receive_fds(sockets.there.get(), Deadline(kLong)); },
                ThrowsMessage<Error>(HasSubstr("wrong size")))
        << bytes;
  }
}

TEST(FdPassing, AcceptingEndsAtTheDeadlineWithAnEmptyConnection) {
  const auto listener = listen_locally();
  EXPECT_FALSE(accept_local(listener, Deadline(kShort)));
  EXPECT_FALSE(accept_local(listener, Deadline(0ms)));
}

TEST(FdPassing, APendingConnectionIsAcceptedAtTheDeadline) {
  const auto listener = listen_locally();
  const auto connection = connect_locally(listener.name, Deadline(kLong));
  EXPECT_TRUE(accept_local(listener, Deadline(0ms)));
}

TEST(FdPassing, ReceivingEndsAtTheDeadline) {
  const auto sockets = connected();
  EXPECT_THROW(receive_fds(sockets.here.get(), Deadline(kShort)), TimeoutError);
}

TEST(FdPassing, SendingWithoutAReceiverEndsAtTheDeadline) {
  const auto sockets = connected();
  EXPECT_THROW(
      {
        while (true) send_fds(sockets.here.get(), 0, {}, Deadline(kShort));
      },
      TimeoutError);
}

// The queue of this listener holds one connection.
TEST(FdPassing, ConnectingToAListenerThatDoesNotAcceptEndsAtTheDeadline) {
  const auto listener = listen_locally();
  ASSERT_EQ(::listen(listener.socket.get(), 0), 0);
  const auto first = connect_locally(listener.name, Deadline(kLong));
  EXPECT_THROW(connect_locally(listener.name, Deadline(kShort)), TimeoutError);
}

TEST(FdPassing, ConnectingWithoutAListenerIsAnError) {
  std::string name;
  {
    const auto listener = listen_locally();
    name = listener.name;
  }
  EXPECT_THROW(connect_locally(name, Deadline(kLong)), Error);
  EXPECT_THROW(connect_locally(std::string(200, 'x'), Deadline(kLong)), Error);
}

TEST(FdPassing, AClosedConnectionIsALostPeer) {
  auto sockets = connected();
  sockets.there.reset();
  EXPECT_THROW(receive_fds(sockets.here.get(), Deadline(kLong)), PeerLost);
  EXPECT_THROW(send_fds(sockets.here.get(), 0, {}, Deadline(kLong)), Error);
}

TEST(FdPassing, AChildThatIsKilledIsALostPeer) {
  const auto listener = listen_locally();
  testing::Child child([&] {
    const auto connection = connect_locally(listener.name, Deadline(kLong));
    ::raise(SIGKILL);
    return true;
  });
  const auto connection = accept_local(listener, Deadline(kLong));
  ASSERT_TRUE(connection);
  EXPECT_THROW(receive_fds(connection.get(), Deadline(kLong)), PeerLost);
  EXPECT_FALSE(child.passed());
}

TEST(FdPassing, ListenersHaveUniqueNames) {
  std::vector<LocalListener> listeners;
  std::set<std::string> names;
  for (int i = 0; i < 20; ++i) {
    listeners.push_back(listen_locally());
    names.insert(listeners.back().name);
  }
  EXPECT_EQ(names.size(), listeners.size());
}

}  // namespace
}  // namespace lockstep
