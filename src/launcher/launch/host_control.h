// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"

namespace lockstep::launch {

// Note [The stdin of a launcher on another host]
//
// `lockstep run --hosts` starts a launcher on each host by a remote shell, and writes to its stdin:
//
//   one line   the NodeOrder: what to run, with the secret of the run, which no command line shows
//   "15"       a stop signal; the launcher acts as if it had received it
//   ""         a sign of life, every kAliveInterval
//
// The end of this stream, and silence of kSilenceLimit, mean that the other side or the network is gone: the
// launcher acts as on SIGHUP. So nothing is left on a host that cannot be reached any more.
//
// The first line that the launcher writes to its stdout is kNodeGreeting. An exit code that comes after it is
// that of the launcher, unless the remote shell lost the connection.
constexpr std::string_view kNodeGreeting = "[lockstep node]";
constexpr std::chrono::seconds kAliveInterval{5};
constexpr std::chrono::seconds kSilenceLimit{20};

struct NodeOrder {
  std::vector<std::string> arguments{};              // of `lockstep`
  std::map<std::string, std::string> environment{};  // in addition to the host's
  std::string folder{};                              // the working directory
};

// One line of JSON, without its newline. Throws ArgumentError naming what is not UTF-8.
std::string encode(const NodeOrder& order);
// Throws LaunchError for a malformed line, and with both versions for an order of another Lockstep.
NodeOrder decode_node_order(const std::string& line);

// Reads the first line of `fd`, and no byte more. Throws LaunchError when it does not come in time.
NodeOrder read_node_order(int fd, const Deadline& deadline);

// The rest of the stream. Not thread-safe.
class HostControl {
 public:
  explicit HostControl(int fd, std::chrono::milliseconds silence_limit = kSilenceLimit)  // not owned
      : fd_(fd), silence_limit_(silence_limit), silence_(silence_limit) {}

  void watch(std::vector<pollfd>& events) const;
  std::chrono::milliseconds poll_timeout() const;
  // A signal that has come, SIGHUP when the stream was lost just now. Does not block.
  std::optional<int> next_signal();
  // Why the stream was lost; empty while it is not.
  std::string_view lost() const { return lost_; }

 private:
  void read_some();

  int fd_;
  std::chrono::milliseconds silence_limit_;
  Deadline silence_;
  std::string in_;
  std::string_view lost_;
  bool loss_told_ = false;
};

}  // namespace lockstep::launch
