// SPDX-License-Identifier: BSD-3-Clause
#include <memory>
#include <set>

#include "checkpoint_file.h"
#include "commands.h"
#include "tensor_dicts.h"

namespace lockstep::ckpt {
namespace {

// Copies all tensors of a storage but the first.
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

struct ConvertOptions {
  std::string in;
  std::string out;
  std::optional<std::string> key;
  bool copy_shared = false;
};

int convert(const ConvertOptions& options) {
  const auto kind = kind_to_write(options.out);
  const auto checkpoint = read_checkpoint(options.in, {.mmap = true});
  if (kind != FileKind::safetensors) {
    write_checkpoint(value_under(checkpoint, options.key), options.out, {});
    return 0;
  }
  const auto& tensors = tensors_under(checkpoint, options.key);
  write_checkpoint(options.copy_shared ? with_copies(tensors) : tensors, options.out,
                   metadata_of(checkpoint));
  return 0;
}

}  // namespace

Command add_convert_command(CLI::App& app) {
  const auto options = std::make_shared<ConvertOptions>();
  auto* command =
      app.add_subcommand("convert",
                         "Convert between .pt (.pth, .bin, .ckpt), .safetensors and the folders of "
                         "torch.distributed.checkpoint");
  command->add_option("in", options->in, "Input checkpoint")->required();
  command->add_option("out", options->out, "Output; a name without extension is a folder")->required();
  command->add_option("--key", options->key, "Convert only the value of this key, e.g. --key state_dict");
  command->add_flag("--copy-shared", options->copy_shared,
                    "Write tensors that share memory as separate copies (safetensors)");
  return {command, [options] { return convert(*options); }};
}

}  // namespace lockstep::ckpt
