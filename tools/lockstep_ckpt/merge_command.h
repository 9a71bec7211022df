// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

/// `merge A B... OUT [--key KEY]`: the union of flat dicts of tensors. A name in two of them is an error
/// unless the tensors are equal.
class MergeCommand {
 public:
  explicit MergeCommand(CLI::App& app);
  MergeCommand(const MergeCommand&) = delete;
  MergeCommand& operator=(const MergeCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  std::vector<std::string> files_;
  std::optional<std::string> key_;
  CLI::App* command_;
};

}  // namespace lockstep::ckpt
