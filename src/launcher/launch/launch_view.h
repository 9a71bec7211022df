// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <list>
#include <memory>
#include <string>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/coordinator_client.h"
#include "launch/messages.h"
#include "launch/options.h"

namespace lockstep::launch {

// What the launcher of a node does for those who look at the ranks of all hosts, see the note in looks.h: it asks
// the coordinator for a tool of this host, and answers for its own ranks. In one thread, which sleeps while
// nobody asks.
class LaunchView {
 public:
  // REQUIRES a run of several nodes. Without LaunchOptions::snapshot this launcher has no ranks of its own. Only
  // processes of `user` may ask. A name that is taken is a warning: nobody can ask here then.
  explicit LaunchView(const LaunchOptions& options, uid_t user = ::geteuid());

  // For LaunchOptions::looks of the supervisor of the ranks.
  int looks() const { return looks_in_.get(); }
  // In the process of the supervisor.
  void close();
  // Until `stop` becomes readable. Called once.
  void serve(int stop);

 private:
  // A tool that has asked.
  struct Asked {
    LineConnection tool{};
    std::unique_ptr<CoordinatorClient> coordinator{};  // nullptr: all is said
    bool has_seen = false;
    Deadline limit;
  };
  // A Look that this launcher answers.
  struct Answer {
    std::unique_ptr<CoordinatorClient> coordinator{};
    std::vector<Seen> parts{};
    Deadline limit;
  };

  void step(int stop);
  int poll_timeout() const;
  void accept_tools();
  void read_looks();
  std::unique_ptr<CoordinatorClient> connect(Hello hello) const;
  std::vector<Seen> own_parts(int first_rank, int ranks) const;
  bool advance(Asked& asked) const;
  bool pass_on(Asked& asked) const;
  static bool advance(Answer& answer);
  void end(Asked& asked, const std::string& problem) const;

  const LaunchOptions& options_;
  uid_t user_;
  UniqueFd listener_;
  UniqueFd looks_in_;
  UniqueFd looks_out_;
  std::list<Asked> asked_;
  std::list<Answer> answers_;
};

}  // namespace lockstep::launch
