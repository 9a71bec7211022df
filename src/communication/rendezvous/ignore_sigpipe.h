// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::rendezvous {

// While it lives, writing to a rank that is gone is an error instead of a SIGPIPE, which would end this
// process. c10d's store server and Gloo rely on Python, which ignores the signal. A handler of the program
// stays.
class IgnoreSigpipe {
 public:
  IgnoreSigpipe();
  ~IgnoreSigpipe();
  IgnoreSigpipe(const IgnoreSigpipe&) = delete;
  IgnoreSigpipe& operator=(const IgnoreSigpipe&) = delete;

 private:
  bool was_default_ = false;
};

}  // namespace lockstep::rendezvous
