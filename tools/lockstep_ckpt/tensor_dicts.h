// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "checkpoint_file.h"

namespace lockstep::ckpt {

/// The value under `key` of a checkpoint: keys of nested dicts joined with dots. Without a key the whole.
/// Throws CheckpointError naming the file and the keys there are.
const Value& value_under(const Checkpoint& checkpoint, const std::optional<std::string>& key);

/// The same, which must be a dict of tensors by name. Otherwise throws CheckpointError naming the file, the
/// first entry that is no tensor, and the keys under which there are dicts of tensors.
const Dict& tensors_under(const Checkpoint& checkpoint, const std::optional<std::string>& key);

/// Puts `value` where value_under() finds one.
void replace_under(Checkpoint& checkpoint, const std::string& key, Value value);

}  // namespace lockstep::ckpt
