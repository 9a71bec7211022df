// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "base/unique_fd.h"
#include "launch/options.h"

namespace lockstep::launch {

// Serves GET /metrics over HTTP by libmicrohttpd, in one thread. At most 16 connections are open; each has one
// request of at most 16 KiB, and ends 5 s after it began. So no client makes it grow; but
// one that opens connections again and again keeps others away: let only those that scrape reach the port.
class MetricsServer {
 public:
  // Listens, and logs where. Throws ArgumentError for a `bind` beyond loopback without a token, LaunchError if it
  // cannot listen there, and Error without the library.
  explicit MetricsServer(const MetricsOptions& options);

  // In a process that was forked.
  void close() { listener_.reset(); }
  // Until `stop` becomes readable. Called once.
  void serve(int stop);

 private:
  [[maybe_unused]] const MetricsOptions& options_;
  UniqueFd listener_;
};

}  // namespace lockstep::launch
