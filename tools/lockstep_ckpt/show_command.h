// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

/// `show FILE [--json]`: what a checkpoint holds, without reading the tensors' data.
class ShowCommand {
 public:
  explicit ShowCommand(CLI::App& app);
  ShowCommand(const ShowCommand&) = delete;
  ShowCommand& operator=(const ShowCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  std::string file_;
  bool json_ = false;
  CLI::App* command_;
};

}  // namespace lockstep::ckpt
