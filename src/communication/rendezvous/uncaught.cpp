// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/uncaught.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/launched_rank.h"
#include "base/log_line.h"

namespace lockstep::rendezvous {
namespace {

constexpr int kMostLines = 12;

std::atomic<std::terminate_handler> former_handler{nullptr};

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
constexpr const char* kEmptyOptionalRemedy =
    ": an empty std::optional was read. new_group() and split_group() return an empty one on a rank that is "
    "not a member of the group; check it before use";
constexpr const char* kMemoryRemedy =
    ": memory ran out; use a smaller batch or fewer ranks on this host, or look for a limit (ulimit -v, "
    "cgroup)";

// Another thread may hold the lock of stdout and never release it.
void flush_stdout() {
  if (::ftrylockfile(stdout) != 0) return;
  ::fflush_unlocked(stdout);
  ::funlockfile(stdout);
}

void flush_output() {
  try {
    for (std::ostream* stream : {&std::cout, &std::clog}) stream->flush();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a reader that is gone
  }
  flush_stdout();
}

// Before the ranks have met, the number that the environment gives.
std::optional<int> rank_of_process() {
  if (const auto world = current_world(); world.size > 1) return world.rank;
  if (const auto launched = launched_rank()) return launched->rank;
  return std::nullopt;
}

// Not by log(): a progress bar that was being drawn may hold the lock of its lines.
void write_report(const std::string& report) {
  const auto line = log_line(LogLevel::error, report, rank_of_process());
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool prints_by_itself(std::terminate_handler handler) {
#ifdef __GLIBCXX__
  return handler == __gnu_cxx::__verbose_terminate_handler;
#else
  (void)handler;
  return false;
#endif
}

[[noreturn]] void report_and_end() {
  flush_output();
  const bool whole = Env().get("LOCKSTEP_LOG_LEVEL") == "debug";
  const auto exception = std::current_exception();
  write_report(exception ? uncaught_text(exception, whole) : kNoException);
  const auto next = former_handler.load();
  if (next != nullptr && !prints_by_itself(next)) next();
  std::abort();
}

}  // namespace

std::string uncaught_text(const std::exception_ptr& exception, bool whole) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    return with_type(whole ? error.what() : error.what_without_backtrace(), whole,
                     whole ? "" : kLibTorchRemedy);
  } catch (const std::bad_optional_access& error) {
    return with_type(error.what(), whole, kEmptyOptionalRemedy);
  } catch (const std::bad_alloc& error) {
    return with_type(error.what(), whole, kMemoryRemedy);
  } catch (const std::exception& error) {
    return with_type(error.what(), whole);
  } catch (...) {
    return "uncaught " + type_name();
  }
}

ReportUncaught::ReportUncaught() {
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
