// SPDX-License-Identifier: BSD-3-Clause
#include "run_report.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <poll.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "observe/private_file.h"
#include "observe/report/redaction.h"
#include "report_parts.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string capitalized(std::string text) {
  if (text.starts_with("rank ")) text.front() = 'R';
  return text;
}

}  // namespace

fs::path report_file(const RunArguments& arguments) {
  const fs::path file = arguments.report;
  if (!arguments.host_index) return file;
  return file.parent_path() /
         fmt::format("{}-node{}{}", file.stem().string(), *arguments.host_index, file.extension().string());
}

RunReport::RunReport(fs::path file, std::vector<std::string> words)
    : file_(std::move(file)),
      words_(std::move(words)),
      sampler_(::getpid()),
      began_(seconds_since_1970()),
      began_at_(steady_now()) {
  require_report_file(file_);
  // The supervisor waits for no reader: an entry for which there is no room is lost.
  auto pipe = make_pipe(O_NONBLOCK);
  if (!pipe.read) throw_error<LaunchError>("--report: pipe: {}", errno_text(errno));
  account_out_ = std::move(pipe.read);
  account_in_ = std::move(pipe.write);
}

void RunReport::watch(int stop) {
  std::array<pollfd, 2> events{pollfd{.fd = stop, .events = POLLIN, .revents = 0},
                               pollfd{.fd = account_out_.get(), .events = POLLIN, .revents = 0}};
  while (events[0].revents == 0) {
    const int count = ::poll(events.data(), events.size(), static_cast<int>(sampler_.wait().count()));
    if (count < 0 && errno != EINTR) return;
    read_account();
    if (count == 0) look();
  }
  judged_ = false;
  look();  // the supervisor may have been killed, and its ranks with it
}

void RunReport::look() {
  try {
    sampler_.look(judged_);
  } catch (const std::exception& error) {
    log(LogLevel::debug, fmt::format("--report: the ranks were not read: {}", exception_text(error)));
  }
}

void RunReport::read_account() {
  std::array<char, 4096> bytes{};
  while (true) {
    const auto count = ::read(account_out_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    unread_.append(bytes.data(), static_cast<std::size_t>(count));
  }
  for (auto end = unread_.find('\n'); end != std::string::npos; end = unread_.find('\n')) {
    const auto line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    try {
      handle(launch::decode_account_entry(line));
    } catch (const LaunchError& error) {  // a part of an entry was lost
      log(LogLevel::debug, fmt::format("--report: {}", error.what()));
    }
  }
}

void RunReport::handle(const launch::AccountEntry& entry) {
  if (!entry.replacement.empty()) {
    on_replacement(entry);
  } else if (!entry.started.empty()) {
    attempts_.push_back({.restarts = entry.restarts,
                         .time = entry.time,
                         .ranks = static_cast<int>(entry.started.size()),
                         .failure = {}});
    failure_.reset();
    judged_ = true;
    sampler_.expect(entry.started.size());
  }
  if (entry.exit) {
    look();  // while others are there
    sampler_.rank_ended();
    ends_.push_back({.rank = entry.exit->rank,
                     .pid = entry.exit->pid,
                     .restarts = entry.restarts,
                     .time = entry.time,
                     .text = launch::describe(*entry.exit),
                     .failed = entry.exit->failed(),
                     .was_stopped = entry.was_stopped});
    if (entry.exit->failed()) judged_ = false;
  }
  if (entry.signal != 0) {
    look();
    judged_ = false;
    signal_ = entry.signal;
  }
  if (entry.failure) on_failure(*entry.failure);
}

void RunReport::on_replacement(const launch::AccountEntry& entry) {
  if (attempts_.empty()) return;  // the entry before was lost
  const bool is_replaced = !entry.started.empty();
  const int ranks = attempts_.back().ranks - (is_replaced ? 0 : 1);
  attempts_.back().failure = {observe::redacted(entry.replacement)};
  attempts_.push_back({.restarts = entry.restarts, .time = entry.time, .ranks = ranks, .failure = {}});
  judged_ = true;
  if (is_replaced) sampler_.rank_started();
}

void RunReport::on_failure(const launch::FailureReport& failure) {
  judged_ = false;
  failure_ = failure;
  if (attempts_.empty()) attempts_.push_back({.time = began_});
  attempts_.back().failure.clear();
  for (const auto& line : launch::report_lines(failure, /*shown=*/false))
    attempts_.back().failure.push_back(observe::redacted(line));
}

std::string RunReport::outcome(int exit_code, double seconds) const {
  const auto restarts = attempts_.empty() ? 0 : attempts_.back().restarts;
  auto after = fmt::format("after {:.1f} s", seconds);
  if (restarts > 0) after += fmt::format(" and {} restart{}", restarts, restarts == 1 ? "" : "s");
  if (exit_code == 0) return fmt::format("The run ended without an error {}.", after);
  if (failure_) {
    return fmt::format("{} {}; the run failed with exit code {}.",
                       capitalized(observe::redacted(launch::headline(*failure_))), after, exit_code);
  }
  if (exit_code == kExitInterrupted)
    return fmt::format("The run was interrupted {}; it continues when it is started again.", after);
  if (signal_ != 0) return fmt::format("{} ended the run {}.", launch::signal_name(signal_), after);
  return fmt::format("The run failed with exit code {} {}.", exit_code, after);
}

observe::Facts RunReport::facts() const {
  std::error_code ignored;
  auto facts = report_facts(sampler_.libtorch());
  facts.emplace_back("Folder", fs::current_path(ignored).string());
  facts.emplace_back("Started", local_time(began_));
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

// The run's exit code stays.
void RunReport::write(int exit_code) noexcept {
  try {
    write_page(exit_code);
  } catch (const std::system_error& error) {
    log(LogLevel::warning, fmt::format("--report {}: the page was not written: {}", file_.string(),
                                       errno_text(error.code().value())));
  } catch (const std::exception& error) {
    log(LogLevel::warning,
        fmt::format("--report {}: the page was not written: {}", file_.string(), exception_text(error)));
  }
}

void RunReport::write_page(int exit_code) {
  read_account();
  const double seconds = static_cast<double>(steady_now() - began_at_) / 1e9;
  auto command = observe::redacted_words(words_);
  command.insert(command.begin(), "lockstep");
  const observe::Report report{.history = sampler_.history(),
                               .title = fmt::format("Run on {}", host_name()),
                               .outcome = outcome(exit_code, seconds),
                               .failed = exit_code != 0,
                               .began = began_,
                               .began_at = began_at_,
                               .seconds = seconds,
                               .attempts = attempts_,
                               .ends = ends_,
                               .command = std::move(command),
                               .facts = facts(),
                               .environment = observe::shown_variables(own_variables()),
                               .period = std::chrono::duration<double>(observe::Sampler::kPeriod).count(),
                               .looks = sampler_.looks(),
                               .processor_seconds = sampler_.processor_seconds()};
  observe::write_private_file(file_, observe::page_of(report));
}

}  // namespace lockstep::cli
