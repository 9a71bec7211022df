// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::rendezvous {

// While it lives, writing to a rank that is gone is an error and no SIGPIPE, which by default would end this
// process without a word: c10d's store server and Gloo do not see to that, since Python ignores the signal. A
// handler of the program's own stays.
class IgnoredBrokenPipes {
 public:
  IgnoredBrokenPipes();
  ~IgnoredBrokenPipes();
  IgnoredBrokenPipes(const IgnoredBrokenPipes&) = delete;
  IgnoredBrokenPipes& operator=(const IgnoredBrokenPipes&) = delete;

 private:
  bool was_default_ = false;
};

}  // namespace lockstep::rendezvous
