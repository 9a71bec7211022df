// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd_passing.h"
#include "base/unique_fd.h"

namespace lockstep::testing {

/// A process whose stdout and stderr are kept in memory.
struct Child {
  int pid = -1;
  UniqueFd handle = {};  ///< pidfd
  UniqueFd out = {};
  UniqueFd err = {};
};

struct ChildResult {
  int status = 0;          ///< of waitpid()
  bool timed_out = false;  ///< it was killed, since it did not end in time
  std::string out = {};
  std::string err = {};
};

/// A process that has loaded what takes long, and forks itself for each child. A request is a number and
/// descriptors. 0 starts a child and has three: a file of words that end with a zero byte each, stdout and
/// stderr. Any other number is the child that is waited for. The answer is the child, or its status. The
/// server ends when its socket closes.
class ForkServer {
 public:
  /// `become` runs in a fork of this process, and executes the server with that socket.
  explicit ForkServer(const std::function<void(int socket)>& become);
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// Waits until the process has loaded what takes long.
  void wait_until_ready();
  Child start(const std::vector<std::string>& words);
  /// Waits for the end of a child, which is killed at the deadline. Called once.
  ChildResult finish(const Child& child, const Deadline& deadline);

 private:
  int request(int number, std::vector<int> fds);

  std::mutex mutex_;
  UniqueFd socket_;
  int pid_ = -1;
};

/// The server's side. Returns in a child, with its words; its stdout and stderr are those of the request.
std::vector<std::string> serve_forks(int socket);

}  // namespace lockstep::testing
