// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <sys/resource.h>
#include <sys/types.h>
#include <vector>

#include "base/unique_fd.h"
#include "launch/messages.h"
#include "launch/options.h"
#include "machine/command.h"

namespace lockstep::launch {

// The launchers that this one starts in the place of lost nodes; note [Nodes that move]. Create it in the launcher's first
// process before that has threads.
class Adopters {
 public:
  // Throws LaunchError if there is no pipe.
  explicit Adopters(const LaunchOptions& options);
  ~Adopters();
  Adopters(const Adopters&) = delete;
  Adopters& operator=(const Adopters&) = delete;

  // For LaunchOptions::adoptions.
  int orders() const { return orders_in_.get(); }
  // For the supervisor of the ranks, which only writes.
  void close() { orders_out_.reset(); }
  // Starts an adopter for each order and passes on its output, until `stop` becomes readable. Then the coordinator has told
  // them of the end of the run, or this launcher leaves it: waits for them, stops those that are left, and kills what does
  // not stop within the grace period.
  void serve(int stop);

 private:
  // Whole lines go on: the supervisor of the ranks writes to the same streams.
  struct Stream {
    UniqueFd from{};
    int to = -1;  // -1: nobody reads any more
    std::string rest{};

    bool is_full() const;
    std::size_t ready() const;  // bytes of `rest` that can go on
  };
  struct Adopter {
    int node_rank = 0;
    pid_t pid = -1;
    UniqueFd life{};  // none: it has ended, and its last output is passed on
    Stream out{};
    Stream err{};
  };

  void step(int stop, int limit_ms);
  void read_orders();
  void start(const AdoptedNode& node);
  static void pass_on(Stream& stream, bool is_last);
  static void write_ready(Stream& stream);
  void take_ended(bool is_stopping);
  void wait_for_all(std::chrono::milliseconds limit);
  void signal_all(int signal) const;

  const LaunchOptions& options_;
  rlimit descriptors_{};  // before the coordinator has raised it
  UniqueFd orders_out_;
  UniqueFd orders_in_;
  std::string orders_;
  std::vector<Adopter> adopters_;
};

}  // namespace lockstep::launch
