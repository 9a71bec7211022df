// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tensor_difference.h"

namespace lockstep::ckpt {

/// `diff A B [--rtol X] [--atol X]`: what differs between two checkpoints, of any formats. Exit code 1 when
/// something does.
class DiffCommand {
 public:
  explicit DiffCommand(CLI::App& app);
  DiffCommand(const DiffCommand&) = delete;
  DiffCommand& operator=(const DiffCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  std::string a_;
  std::string b_;
  Tolerance tolerance_;
  CLI::App* command_;
};

}  // namespace lockstep::ckpt
