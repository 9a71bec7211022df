// SPDX-License-Identifier: BSD-3-Clause
#include "convert_command.h"

#include <set>

#include "checkpoint_file.h"
#include "file_kind.h"
#include "tensor_dicts.h"

namespace lockstep::ckpt {
namespace {

// Tensors of one storage come apart: all but the first are copied.
Dict with_copies(const Dict& tensors) {
  std::set<const void*> storages;
  Dict apart;
  for (const auto& [name, value] : tensors) {
    const auto& tensor = value.as_tensor();
    const bool first =
        tensor.layout() != at::kStrided || storages.insert(tensor.storage().unsafeGetStorageImpl()).second;
    apart.set(name, first ? tensor : tensor.clone());
  }
  return apart;
}

}  // namespace

ConvertCommand::ConvertCommand(CLI::App& app)
    : command_(app.add_subcommand("convert",
                                  "Between .pt (.pth, .bin, .ckpt), .safetensors and folders of "
                                  "torch.distributed.checkpoint")) {
  command_->add_option("in", in_, "A checkpoint")->required();
  command_->add_option("out", out_, "What to write; a name without extension is that of a folder")
      ->required();
  command_->add_option("--key", key_, "Only what the checkpoint has under this key, as in --key state_dict");
  command_->add_flag(
      "--copy-shared", copy_shared_,
      "To safetensors: write tensors that share memory, which the format cannot hold, each for itself");
}

int ConvertCommand::run() const {
  const auto kind = kind_to_write(out_);
  const auto checkpoint = read_checkpoint(in_, {.mmap = true});
  if (kind != FileKind::safetensors) {
    write_checkpoint(value_under(checkpoint, key_), out_, {});
    return 0;
  }
  const auto& tensors = tensors_under(checkpoint, key_);
  const auto metadata = checkpoint.metadata.empty() ? usual_metadata() : checkpoint.metadata;
  write_checkpoint(copy_shared_ ? with_copies(tensors) : tensors, out_, metadata);
  return 0;
}

}  // namespace lockstep::ckpt
