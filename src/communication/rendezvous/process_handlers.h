// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <string>

// What a process handles otherwise while it is in a run: SIGPIPE, and exceptions that nothing catches.
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

// While it lives, an exception that nothing catches is reported with the rank, after what the program has
// printed to stdout and std::cout. Then the process ends as before: by the handler of the program that was
// set before, or by abort() without its usual lines. A child forked meanwhile ends without the report.
class ReportUncaught {
 public:
  ReportUncaught();
  ~ReportUncaught();
  ReportUncaught(const ReportUncaught&) = delete;
  ReportUncaught& operator=(const ReportUncaught&) = delete;

 private:
  bool installed_ = false;
};

// What is written for an exception: its type, its text without LibTorch's stack and with at most 12 lines,
// and a remedy where the text has none. `whole`: all of the text.
std::string uncaught_text(const std::exception_ptr& exception, bool whole);

}  // namespace lockstep::rendezvous
