// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

/// `verify FILE...`: reads files whole, and says of each whether it is as it was written. Exit code 1 when
/// one is not.
class VerifyCommand {
 public:
  explicit VerifyCommand(CLI::App& app);
  VerifyCommand(const VerifyCommand&) = delete;
  VerifyCommand& operator=(const VerifyCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  std::vector<std::string> files_;
  CLI::App* command_;
};

}  // namespace lockstep::ckpt
