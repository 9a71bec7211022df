// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

/// `strip-prefix FILE OUT [--prefix module.] [--key KEY]`: PyTorch's
/// consume_prefix_in_state_dict_if_present() on a file: what a DataParallel saved as "module.x" is named "x".
class StripPrefixCommand {
 public:
  explicit StripPrefixCommand(CLI::App& app);
  StripPrefixCommand(const StripPrefixCommand&) = delete;
  StripPrefixCommand& operator=(const StripPrefixCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  std::string in_;
  std::string out_;
  std::string prefix_ = "module.";
  std::optional<std::string> key_;
  CLI::App* command_;
};

}  // namespace lockstep::ckpt
