// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

/// `convert IN OUT [--key KEY] [--copy-shared]`: between PyTorch's format and safetensors, as the extensions
/// say.
class ConvertCommand {
 public:
  explicit ConvertCommand(CLI::App& app);
  ConvertCommand(const ConvertCommand&) = delete;
  ConvertCommand& operator=(const ConvertCommand&) = delete;

  bool chosen() const { return command_->parsed(); }
  int run() const;

 private:
  std::string in_;
  std::string out_;
  std::optional<std::string> key_;
  bool copy_shared_ = false;
  CLI::App* command_;
};

}  // namespace lockstep::ckpt
