// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::ckpt {

/// `convert IN OUT [--key KEY] [--copy-shared]`: between PyTorch's format, safetensors, and the folders of
/// torch.distributed.checkpoint, as the extensions say. PyTorch: `torch_save_to_dcp`, `dcp_to_torch_save`.
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
