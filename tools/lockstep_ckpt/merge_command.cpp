// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <memory>
#include <span>

#include "checkpoint_file.h"
#include "commands.h"
#include "serialize/errors.h"
#include "tensor_dicts.h"
#include "tensor_difference.h"

namespace lockstep::ckpt {
namespace {

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.layout() != b.layout()) return false;
  return difference(a, b, {}, [](std::uint64_t /*bytes*/) {}).count == 0;
}

class Merger {
 public:
  void add(const Checkpoint& checkpoint, const Dict& tensors) {
    for (const auto& [name, value] : tensors) {
      const auto* there = merged_.find(name);
      if (there == nullptr) {
        merged_.set(name, value);
        sources_.emplace(name.as_string(), checkpoint.file.string());
      } else if (!same(there->as_tensor(), value.as_tensor())) {
        throw_error("{}: the tensor {} differs from that of {}; rename or remove one",
                    checkpoint.file.string(), repr(name, 200), sources_.at(name.as_string()));
      }
    }
  }

  Dict take() { return std::move(merged_); }

 private:
  Dict merged_;
  std::map<std::string, std::string> sources_;
};

int merge(std::span<const std::string> files, const std::string& out, const std::optional<std::string>& key) {
  kind_to_write(out);
  Merger merger;
  for (const auto& file : files) {
    const auto checkpoint = read_checkpoint(file, {.mmap = true});
    merger.add(checkpoint, tensors_under(checkpoint, key));
  }
  write_checkpoint(merger.take(), out, usual_metadata());
  return 0;
}

}  // namespace

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
