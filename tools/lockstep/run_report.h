// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launch/account.h"
#include "observe/report/page.h"
#include "observe/report/sampler.h"
#include "run_arguments.h"

namespace lockstep::cli {

// Where the page of this launcher goes: with --hosts each host has one of its own, report-node1.html.
std::filesystem::path report_file(const RunArguments& arguments);

// The page of `lockstep run --report`: looks at the ranks while they run, and listens to their supervisor.
class RunReport {
 public:
  // `words`: the command line of `lockstep`. Throws ArgumentError if the file could not be written.
  RunReport(std::filesystem::path file, std::vector<std::string> words);

  // For LaunchOptions::account.
  int account() const { return account_in_.get(); }
  // Until `stop` becomes readable.
  void watch(int stop);
  // After the end of the run. A page that cannot be written is a warning.
  void write(int exit_code) noexcept;

 private:
  void write_page(int exit_code);
  void read_account();
  void handle(const launch::AccountEntry& entry);
  void on_replacement(const launch::AccountEntry& entry);
  void on_failure(const launch::FailureReport& failure);
  void look();
  std::string outcome(int exit_code, double seconds) const;
  observe::Facts facts() const;

  std::filesystem::path file_;
  std::vector<std::string> words_;
  UniqueFd account_in_;
  UniqueFd account_out_;
  std::string unread_{};
  observe::Sampler sampler_;
  bool judged_ = false;
  double began_;
  std::int64_t began_at_;
  std::vector<observe::Attempt> attempts_{};
  std::vector<observe::RankEnd> ends_{};
  std::optional<launch::FailureReport> failure_{};  // of the last attempt
  int signal_ = 0;
};

}  // namespace lockstep::cli
