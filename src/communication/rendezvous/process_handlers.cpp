// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/process_handlers.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <iostream>
#include <memory>
#include <optional>
#include <poll.h>
#include <sstream>
#include <string_view>
#include <typeinfo>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/launched_rank.h"
#include "base/process_state.h"

namespace lockstep::rendezvous {
namespace {

bool is_handled_by(void (*handler)(int)) {
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  return (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == handler;
}

void handle_by(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigaction(SIGPIPE, &action, nullptr);
}

constexpr int kMostLines = 12;

std::atomic<std::terminate_handler> former_handler{nullptr};
std::atomic<pid_t> reporting_process{0};

// The type of the exception that is being handled.
std::string type_name() {
  const auto* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "an exception of another language";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type->name();
}

std::string first_lines(const std::string& text) {
  std::istringstream stream(text);
  std::string kept;
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
    if (lines < kMostLines) kept += (lines == 0 ? "" : "\n") + line;
  }
  if (lines <= kMostLines) return kept;
  return fmt::format("{}\n({} more lines; LOCKSTEP_LOG_LEVEL=debug shows them)", kept, lines - kMostLines);
}

std::string with_type(const std::string& text, bool whole, const char* remedy = "") {
  return fmt::format("uncaught {}: {}{}", type_name(), whole ? text : first_lines(text), remedy);
}

constexpr const char* kNoException =
    "std::terminate() was called without an exception: was a std::thread destroyed before join()?";
constexpr const char* kLibTorchRemedy =
    "\nLibTorch threw it in an operator that this program called; LOCKSTEP_LOG_LEVEL=debug shows where";

constexpr const char* kMemoryRemedy =
    ": memory ran out; use a smaller batch or fewer ranks on this host, or look for a limit (ulimit -v, "
    "cgroup)";

constexpr int kFlushMs = 1000;

// A reader that does not read, or that is gone, must not keep the report back.
bool accepts_output(int descriptor) {
  pollfd out{.fd = descriptor, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, kFlushMs) == 1 && out.revents == POLLOUT;
}

// Another thread may hold the lock of the file and never release it. The stream takes the same lock.
void flush_file(std::FILE* file, int descriptor, std::ostream& stream) {
  if (::ftrylockfile(file) != 0) return;
  if (accepts_output(descriptor)) {
    try {
      stream.flush();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the report follows all the same
    }
    ::fflush_unlocked(file);
  }
  ::funlockfile(file);
}

void flush_output() {
  flush_file(stdout, STDOUT_FILENO, std::cout);
  flush_file(stderr, STDERR_FILENO, std::clog);
}

// Before the ranks have met, the number that the environment gives.
std::optional<int> rank_of_process() {
  if (const auto world = current_world(); world.size > 1) return world.rank;
  if (const auto launched = launched_rank()) return launched->rank;
  return std::nullopt;
}

void write_stderr(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Not by log(): a progress bar that was being drawn may hold the lock of its lines.
void write_report(const std::string& report) {
  write_stderr(log_line(LogLevel::error, report, rank_of_process()));
}

// Allocates nothing.
void write_short_report(const std::type_info* type) {
  write_stderr("lockstep: uncaught exception of type ");
  write_stderr(type != nullptr ? type->name() : "(unknown)");
  write_stderr("; its text could not be reported, perhaps because memory is short\n");
}

bool prints_by_itself(std::terminate_handler handler) {
#ifdef __GLIBCXX__
  return handler == __gnu_cxx::__verbose_terminate_handler;
#else
  (void)handler;
  return false;
#endif
}

void report_current() {
  const auto* const type = abi::__cxa_current_exception_type();
  try {
    flush_output();
    const bool whole = Env().get("LOCKSTEP_LOG_LEVEL") == "debug";
    const auto exception = std::current_exception();
    write_report(exception ? uncaught_text(exception, whole) : kNoException);
  } catch (...) {
    write_short_report(type);
  }
}

enum class Stage { none, reporting, reported };

// Each thread has one, because others may end at the same time.
thread_local Stage stage = Stage::none;

// A handler that the program set later may call this one again, and so may an exception in the report.
[[noreturn]] void end_again() {
  if (stage == Stage::reporting) write_short_report(abi::__cxa_current_exception_type());
  std::abort();
}

[[noreturn]] void report_and_end() {
  if (stage != Stage::none) end_again();
  stage = Stage::reporting;
  // A forked child is no rank.
  const bool is_rank = ::getpid() == reporting_process.load();
  if (is_rank) report_current();
  stage = Stage::reported;
  const auto next = former_handler.load();
  if (next != nullptr && !(is_rank && prints_by_itself(next))) next();
  std::abort();
}

}  // namespace

IgnoreSigpipe::IgnoreSigpipe() : was_default_(is_handled_by(SIG_DFL)) {
  if (was_default_) handle_by(SIG_IGN);
}

IgnoreSigpipe::~IgnoreSigpipe() {
  if (was_default_ && is_handled_by(SIG_IGN)) handle_by(SIG_DFL);
}

std::string uncaught_text(const std::exception_ptr& exception, bool whole) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    return with_type(whole ? error.what() : error.what_without_backtrace(), whole,
                     whole ? "" : kLibTorchRemedy);
  } catch (const std::bad_alloc& error) {
    return with_type(error.what(), whole, kMemoryRemedy);
  } catch (const std::exception& error) {
    return with_type(error.what(), whole);
  } catch (...) {
    return "uncaught " + type_name();
  }
}

ReportUncaught::ReportUncaught() {
  reporting_process = ::getpid();
  const auto now = std::get_terminate();
  if (now == report_and_end) return;
  former_handler = now;
  std::set_terminate(report_and_end);
  installed_ = true;
}

ReportUncaught::~ReportUncaught() {
  if (installed_ && std::get_terminate() == report_and_end) std::set_terminate(former_handler);
}

}  // namespace lockstep::rendezvous
