// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "rendezvous/session.h"

namespace lockstep {
namespace {

// What a write to a socket that nobody reads any more does: 0 for an error, else the signal that ended the
// writer.
int signal_of_broken_pipe() {
  const auto writer = ::fork();
  if (writer == 0) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) ::_exit(1);
    ::close(ends[1]);
    ::_exit(::write(ends[0], "x", 1) < 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(writer, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(IgnoreSigpipe, WritesToLostPeersAreErrorsInAContext) {
  EXPECT_EQ(signal_of_broken_pipe(), SIGPIPE);
  {
    const auto context = rendezvous::init({{}, Env(std::map<std::string, std::string>{})});
    EXPECT_EQ(signal_of_broken_pipe(), 0);
  }
  EXPECT_EQ(signal_of_broken_pipe(), SIGPIPE) << "as before";
}

TEST(IgnoreSigpipe, KeepsAHandlerOfTheProgram) {
  const auto handler = [](int) { ::_exit(3); };
  const auto before = std::signal(SIGPIPE, handler);
  {
    const auto context = rendezvous::init({{}, Env(std::map<std::string, std::string>{})});
    EXPECT_EQ(std::signal(SIGPIPE, handler), static_cast<void (*)(int)>(handler));
  }
  EXPECT_EQ(std::signal(SIGPIPE, before), static_cast<void (*)(int)>(handler));
}

}  // namespace
}  // namespace lockstep
