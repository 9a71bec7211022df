// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep devices [--json] [--watch[=SECONDS]]`: cores, memory, NUMA nodes and GPUs of this host.
class DevicesCommand {
 public:
  explicit DevicesCommand(CLI::App& app);
  DevicesCommand(const DevicesCommand&) = delete;
  DevicesCommand& operator=(const DevicesCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  // With --watch, until Ctrl-C, SIGTERM (exit code 0) or the end of stdout's reader.
  int run() const;

 private:
  bool json_ = false;
  std::optional<double> watch_;
  CLI::App* command_;
};

}  // namespace lockstep::cli
