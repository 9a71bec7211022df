// SPDX-License-Identifier: BSD-3-Clause
#include "strip_prefix_command.h"

#include <iostream>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "checkpoint_file.h"
#include "file_kind.h"
#include "strip_prefix.h"
#include "tensor_dicts.h"

namespace lockstep::ckpt {
namespace {

Stripped stripped(const Checkpoint& checkpoint, const std::optional<std::string>& key,
                  const std::string& prefix) {
  const auto& tensors = tensors_under(checkpoint, key);
  const auto file = checkpoint.file.string();
  try {
    auto result = strip_prefix(tensors, prefix);
    if (result.renamed > 0) return result;
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file, error.what()));
  }
  const auto there =
      tensors.empty() ? "it has none" : fmt::format("the first is {}", repr(tensors.begin()->key, 200));
  throw CheckpointError(fmt::format("{}: no key starts with {}; {}", file, repr(Value(prefix), 200), there));
}

}  // namespace

StripPrefixCommand::StripPrefixCommand(CLI::App& app)
    : command_(app.add_subcommand("strip-prefix", "Take \"module.\" away from the names of tensors")) {
  command_->add_option("file", in_, "A checkpoint")->required();
  command_->add_option("out", out_, "What to write")->required();
  command_->add_option("--prefix", prefix_, "Another prefix")->capture_default_str();
  command_->add_option("--key", key_,
                       "Where the dict of tensors is; the rest of the checkpoint stays as it is");
}

int StripPrefixCommand::run() const {
  const auto kind = kind_to_write(out_);
  auto checkpoint = read_checkpoint(in_, {.mmap = true});
  auto result = stripped(checkpoint, key_, prefix_);
  if (key_ && kind != FileKind::safetensors) {
    replace_under(checkpoint, *key_, std::move(result.dict));
    write_checkpoint(checkpoint.value, out_, {});
  } else {
    write_checkpoint(std::move(result.dict), out_,
                     checkpoint.metadata.empty() ? usual_metadata() : checkpoint.metadata);
  }
  std::cout << fmt::format("{} keys renamed\n", result.renamed) << std::flush;
  return 0;
}

}  // namespace lockstep::ckpt
