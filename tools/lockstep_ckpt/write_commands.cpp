// SPDX-License-Identifier: BSD-3-Clause
#include "write_commands.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include <fmt/ranges.h>

#include <lockstep/checkpoint/state_dict.h>

#include "base/throw_error.h"
#include "checkpoint_file.h"
#include "leaves.h"

namespace lockstep::ckpt {
namespace {

bool is_tensor(const Value& value) { return value.is<at::Tensor>() || value.is<Parameter>(); }

bool is_tensor_by_name(const Dict::Item& item) { return item.key.is<std::string>() && is_tensor(item.value); }

bool is_tensor_dict(const Value& value) {
  const auto* dict = value.get_if<Dict>();
  return dict != nullptr && !dict->empty() && std::all_of(dict->begin(), dict->end(), is_tensor_by_name);
}

void find_tensor_dicts(const Value& value, const std::string& path, std::vector<std::string>& found) {
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) return;
  for (const auto& [key, item] : *dict) {
    const auto* name = key.get_if<std::string>();
    if (name == nullptr) continue;
    const auto below = path.empty() ? *name : path + "." + *name;
    if (is_tensor_dict(item)) {
      found.push_back(below);
    } else {
      find_tensor_dicts(item, below, found);
    }
  }
}

// The keys to choose from with --key.
std::string advice(const Value& value) {
  std::vector<std::string> found;
  find_tensor_dicts(value, "", found);
  if (found.empty()) return "it has no dict of tensors";
  for (auto& key : found) key = printable(key);
  return fmt::format("choose a dict of tensors with --key: {}", fmt::join(found, ", "));
}

[[noreturn]] void fail(const Checkpoint& checkpoint, const std::string& what) {
  throw_error<CheckpointError>("{}: {}; {}", checkpoint.file.string(), what, advice(checkpoint.value));
}

// Keys may contain dots, so at every level the longest match is tried first.
const Value* find(const Value& value, std::string_view path) {
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) return nullptr;
  for (auto end = path.size(); end != std::string_view::npos && end > 0; end = path.rfind('.', end - 1)) {
    const auto* item = dict->find(Value(path.substr(0, end)));
    if (item == nullptr) continue;
    if (end == path.size()) return item;
    if (const auto* found = find(*item, path.substr(end + 1))) return found;
  }
  return nullptr;
}

std::string described(const Value& value) { return fmt::format("{} {}", value.type_name(), repr(value, 60)); }

// The value under `key`: keys of nested dicts joined by dots. Without a key, the whole value. Throws
// CheckpointError that names the file and the existing keys.
const Value& value_under(const Checkpoint& checkpoint, const std::optional<std::string>& key) {
  if (!key) return checkpoint.value;
  if (const auto* found = find(checkpoint.value, *key)) return *found;
  fail(checkpoint, fmt::format("it has nothing under the key {}", repr(Value(*key), 200)));
}

// Like value_under(), for a dict of tensors by name. Otherwise throws CheckpointError that names the file,
// the first other entry, and the keys of dicts of tensors.
const Dict& tensors_under(const Checkpoint& checkpoint, const std::optional<std::string>& key) {
  const auto& value = value_under(checkpoint, key);
  const auto where = key ? fmt::format("under {} it", repr(Value(*key), 200)) : std::string("it");
  const auto* dict = value.get_if<Dict>();
  if (dict == nullptr) {
    fail(checkpoint, fmt::format("{} has {}, not a dict of tensors", where, described(value)));
  }
  const auto* other = std::find_if_not(dict->begin(), dict->end(), is_tensor_by_name);
  if (other == dict->end()) return *dict;
  if (!other->key.is<std::string>()) {
    fail(checkpoint, fmt::format("{} has a key that is no string: {}", where, described(other->key)));
  }
  fail(checkpoint, fmt::format("{} is no flat dict of tensors: the entry {} is {}", where,
                               repr(other->key, 200), described(other->value)));
}

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

struct WriteOptions {
  std::string in;
  std::string out;
  std::string prefix = "module.";
  std::optional<std::string> key;
  bool copy_shared = false;
};

int convert(const WriteOptions& options) {
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

Dict stripped(const std::string& file, const Dict& tensors, const std::string& prefix) {
  auto result = without_prefix(tensors, prefix);
  if (result.size() == tensors.size()) return result;
  for (const auto& [key, value] : tensors) {
    if (!key.as_string().starts_with(prefix) && tensors.contains(prefix + key.as_string())) {
      throw_error<CheckpointError>(
          "{}: without the prefix {} there would be two entries {}; rename or remove one", file,
          repr(Value(prefix), 200), repr(key, 200));
    }
  }
  throw_error<CheckpointError>("{}: keys collide without the prefix {}; rename or remove some", file,
                               repr(Value(prefix), 200));
}

int strip_prefix(const WriteOptions& options) {
  const auto kind = kind_to_write(options.out);
  auto checkpoint = read_checkpoint(options.in, {.mmap = true});
  const auto& tensors = tensors_under(checkpoint, options.key);
  const auto renamed = std::count_if(tensors.begin(), tensors.end(), [&](const Dict::Item& item) {
    return item.key.as_string().starts_with(options.prefix);
  });
  if (renamed == 0) {
    throw_error<CheckpointError>(
        "{}: no key starts with {}; {}", options.in, repr(Value(options.prefix), 200),
        tensors.empty() ? "it has none" : fmt::format("the first is {}", repr(tensors.begin()->key, 200)));
  }
  auto result = stripped(options.in, tensors, options.prefix);
  if (options.key && kind != FileKind::safetensors) {
    // `checkpoint` itself is not const.
    const_cast<Value&>(value_under(checkpoint, options.key)) = std::move(result);
    write_checkpoint(checkpoint.value, options.out, {});
  } else {
    write_checkpoint(std::move(result), options.out, metadata_of(checkpoint));
  }
  std::cout << fmt::format("{} keys renamed\n", renamed) << std::flush;
  return 0;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.layout() != b.layout()) return false;
  return difference(a, b, {}, [](std::uint64_t /*bytes*/) {}).count == 0;
}

int merge(std::span<const std::string> files, const std::string& out, const std::optional<std::string>& key) {
  kind_to_write(out);
  Dict merged;
  std::map<std::string, std::string> sources;
  for (const auto& file : files) {
    const auto checkpoint = read_checkpoint(file, {.mmap = true});
    for (const auto& [name, value] : tensors_under(checkpoint, key)) {
      const auto* there = merged.find(name);
      if (there == nullptr) {
        merged.set(name, value);
        sources.emplace(name.as_string(), file);
      } else if (!same(there->as_tensor(), value.as_tensor())) {
        throw_error<CheckpointError>("{}: the tensor {} differs from that of {}; rename or remove one", file,
                                     repr(name, 200), sources.at(name.as_string()));
      }
    }
  }
  write_checkpoint(merged, out, kUsualMetadata);
  return 0;
}

}  // namespace

Command add_convert_command(CLI::App& app) {
  const auto options = std::make_shared<WriteOptions>();
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

Command add_strip_prefix_command(CLI::App& app) {
  const auto options = std::make_shared<WriteOptions>();
  auto* command = app.add_subcommand("strip-prefix", "Remove \"module.\" from the names of tensors");
  command->add_option("file", options->in, "Input checkpoint")->required();
  command->add_option("out", options->out, "Output")->required();
  command->add_option("--prefix", options->prefix, "Prefix to remove")->capture_default_str();
  command->add_option("--key", options->key, "Key of the dict of tensors; the other entries stay unchanged");
  return {command, [options] { return strip_prefix(*options); }};
}

Command add_merge_command(CLI::App& app) {
  struct Options {
    std::vector<std::string> files;
    std::optional<std::string> key;
  };
  const auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("merge", "Merge the tensors of several checkpoints: merge A B... OUT");
  command->add_option("files", options->files, "Input checkpoints, then the output")
      ->required()
      ->expected(3, -1);
  command->add_option("--key", options->key, "Key of the dict of tensors in each checkpoint");
  return {command, [options] {
            const std::span files(options->files);
            return merge(files.first(files.size() - 1), files.back(), options->key);
          }};
}

}  // namespace lockstep::ckpt
