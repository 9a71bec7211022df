// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "support/family.h"

namespace lockstep::testing {

// Where a LauncherProcess's output goes.
enum class Output {
  two_pipes,  // out and err apart
  one_pipe,   // both to out, as with 2>&1
  terminal,   // both to out, through a terminal that controls the launcher's session
};

// A running `lockstep`, or another program that starts ranks. Waits end with an exception, which fails the
// test, when the watchdog's time is over. The destructor kills the launcher and everything that carries its
// marker.
class LauncherProcess {
 public:
  struct Options {
    std::map<std::string, std::string> env = {};  // added to the environment; "" unsets
    Output output = Output::two_pipes;
    std::chrono::seconds watchdog{60};
    std::string program = {};  // the path of a program that starts ranks itself; empty: lockstep
  };

  // `arguments` follow "lockstep", or the program.
  explicit LauncherProcess(const std::vector<std::string>& arguments)
      : LauncherProcess(arguments, Options{}) {}
  LauncherProcess(const std::vector<std::string>& arguments, const Options& options);
  ~LauncherProcess();
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  // Types into the terminal.
  void type(std::string_view keys) const;
  // Reads until `text` has come `times` times on stdout.
  void wait_for(std::string_view text, int times = 1);
  // Closes the read end of stdout; a terminal is closed.
  void stop_reading_stdout() { out_fd_.reset(); }
  // Reads to the end and returns the exit code; -signal when one killed the launcher.
  int finish();

  // The pid of a rank that has written "pid <pid> of <rank>" to stdout, which was read.
  pid_t rank_pid(int rank) const;

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // Living processes that were started by or under this launcher, itself included.
  std::vector<pid_t> family() const { return family_.members(); }
  // Waits until family() has at least `size` members.
  void wait_for_family(std::size_t size) const { family_.wait_for(size); }
  // Waits until family() is empty.
  void wait_for_no_family() const { family_.wait_for_none(); }

 private:
  bool read_some();

  Family family_;
  Deadline deadline_;
  pid_t pid_ = -1;
  UniqueFd out_fd_;
  UniqueFd err_fd_;
  std::string out_;
  std::string err_;
};

std::vector<std::string> lines_of(const std::string& text);

// A port for a server that sets SO_REUSEADDR. The kernel gives it to nobody else while this program runs.
std::string free_port();

// "lockstep run --nproc-per-node <ranks> -- <launcher_rank> <what>".
std::vector<std::string> helper_ranks(int ranks, const std::string& what,
                                      const std::vector<std::string>& more_options = {});

// "lockstep run --nproc-per-node <ranks> -- /bin/sh -c <script>".
std::vector<std::string> shell_ranks(int ranks, const std::string& script,
                                     const std::vector<std::string>& more_options = {});

}  // namespace lockstep::testing
