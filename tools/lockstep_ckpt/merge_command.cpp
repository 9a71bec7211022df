// SPDX-License-Identifier: BSD-3-Clause
#include "merge_command.h"

#include <map>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "checkpoint_file.h"
#include "file_kind.h"
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
        throw CheckpointError(
            fmt::format("{}: the tensor {} is another one than that of {}; rename or remove one",
                        checkpoint.file.string(), repr(name, 200), sources_.at(name.as_string())));
      }
    }
  }

  Dict take() { return std::move(merged_); }

 private:
  Dict merged_;
  std::map<std::string, std::string> sources_;
};

}  // namespace

MergeCommand::MergeCommand(CLI::App& app)
    : command_(app.add_subcommand("merge", "One checkpoint of the tensors of several: merge A B... OUT")) {
  command_->add_option("files", files_, "Checkpoints, then what to write")->required()->expected(3, -1);
  command_->add_option("--key", key_, "Where the dict of tensors is in each");
}

int MergeCommand::run() const {
  kind_to_write(files_.back());
  Merger merger;
  for (const auto& file : std::span(files_).first(files_.size() - 1)) {
    const auto checkpoint = read_checkpoint(file, {.mmap = true});
    merger.add(checkpoint, tensors_under(checkpoint, key_));
  }
  write_checkpoint(merger.take(), files_.back(), usual_metadata());
  return 0;
}

}  // namespace lockstep::ckpt
