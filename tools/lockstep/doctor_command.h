// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep doctor [--json] [--port P] [--hosts a,b,... [--ssh COMMAND] [--program PATH]]`: checks this host
// or several before training.
class DoctorCommand {
 public:
  explicit DoctorCommand(CLI::App& app);
  DoctorCommand(const DoctorCommand&) = delete;
  DoctorCommand& operator=(const DoctorCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  // 0 without problems, else 1.
  int run() const;

 private:
  void check_arguments() const;
  int check_this_host() const;
  int check_all_hosts() const;

  bool json_ = false;
  std::optional<int> port_;
  std::vector<std::string> hosts_;
  std::string ssh_;
  std::string program_;
  std::string meeting_;  // from another doctor, which asks this host among others
  CLI::App* command_;
};

}  // namespace lockstep::cli
