// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace lockstep::testing {

/// In the environment with which a process was started: its Family.
inline constexpr const char* kFamilyVariable = "LOCKSTEP_TEST_FAMILY";

/// The living processes that carry a mark in the environment with which they, or those that they were forked
/// off, were started. Waits end with an exception, which fails the test, after a minute. The destructor kills
/// what is left.
class Family {
 public:
  Family();
  ~Family();
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  /// To be added to the first one's environment.
  const std::map<std::string, std::string>& mark() const { return mark_; }

  std::vector<pid_t> members() const;
  std::vector<pid_t> children_of(pid_t parent) const;
  /// Waits until there are `size` members, or more.
  void wait_for(std::size_t size) const;
  void wait_for_none() const;

 private:
  std::map<std::string, std::string> mark_;
};

/// The parent of a living process.
pid_t parent_of(pid_t pid);
/// Waits until a process is in `state`, as in /proc/<pid>/stat.
void wait_for_state(pid_t pid, char state);
/// Waits until a process waits in that function of the kernel.
void wait_for_wait(pid_t pid, std::string_view function);

}  // namespace lockstep::testing
