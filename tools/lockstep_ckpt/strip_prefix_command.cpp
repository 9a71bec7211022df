// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iostream>
#include <memory>

#include <lockstep/checkpoint/state_dict.h>

#include "checkpoint_file.h"
#include "commands.h"
#include "serialize/errors.h"
#include "tensor_dicts.h"

namespace lockstep::ckpt {
namespace {

struct StripOptions {
  std::string in;
  std::string out;
  std::string prefix = "module.";
  std::optional<std::string> key;
};

Dict stripped(const Checkpoint& checkpoint, const Dict& tensors, const std::string& prefix) {
  const auto file = checkpoint.file.string();
  auto result = without_prefix(tensors, prefix);
  if (result.size() == tensors.size()) return result;
  for (const auto& [key, value] : tensors) {
    if (!key.as_string().starts_with(prefix) && tensors.contains(prefix + key.as_string())) {
      throw_error("{}: without the prefix {} there would be two entries {}", file, repr(Value(prefix), 200),
                  repr(key, 200));
    }
  }
  throw_error("{}: keys collide without the prefix {}", file, repr(Value(prefix), 200));
}

int strip_prefix(const StripOptions& options) {
  const auto kind = kind_to_write(options.out);
  auto checkpoint = read_checkpoint(options.in, {.mmap = true});
  const auto& tensors = tensors_under(checkpoint, options.key);
  const auto renamed = std::count_if(tensors.begin(), tensors.end(), [&](const Dict::Item& item) {
    return item.key.as_string().starts_with(options.prefix);
  });
  if (renamed == 0) {
    throw_error(
        "{}: no key starts with {}; {}", options.in, repr(Value(options.prefix), 200),
        tensors.empty() ? "it has none" : fmt::format("the first is {}", repr(tensors.begin()->key, 200)));
  }
  auto result = stripped(checkpoint, tensors, options.prefix);
  if (options.key && kind != FileKind::safetensors) {
    replace_under(checkpoint, *options.key, std::move(result));
    write_checkpoint(checkpoint.value, options.out, {});
  } else {
    write_checkpoint(std::move(result), options.out, metadata_of(checkpoint));
  }
  std::cout << fmt::format("{} keys renamed\n", renamed) << std::flush;
  return 0;
}

}  // namespace

Command add_strip_prefix_command(CLI::App& app) {
  const auto options = std::make_shared<StripOptions>();
  auto* command = app.add_subcommand("strip-prefix", "Remove \"module.\" from the names of tensors");
  command->add_option("file", options->in, "Input checkpoint")->required();
  command->add_option("out", options->out, "Output")->required();
  command->add_option("--prefix", options->prefix, "Prefix to remove")->capture_default_str();
  command->add_option("--key", options->key, "Key of the dict of tensors; the other entries stay unchanged");
  return {command, [options] { return strip_prefix(*options); }};
}

}  // namespace lockstep::ckpt
