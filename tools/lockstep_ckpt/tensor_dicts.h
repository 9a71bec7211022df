// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "checkpoint_file.h"

namespace lockstep::ckpt {

// The value under `key`: keys of nested dicts joined by dots. Without a key, the whole value. Throws
// CheckpointError that names the file and the existing keys.
const Value& value_under(const Checkpoint& checkpoint, const std::optional<std::string>& key);

// Like value_under(), for a dict of tensors by name. Otherwise throws CheckpointError that names the file,
// the first other entry, and the keys of dicts of tensors.
const Dict& tensors_under(const Checkpoint& checkpoint, const std::optional<std::string>& key);

// Replaces the value under `key`.
void replace_under(Checkpoint& checkpoint, const std::string& key, Value value);

}  // namespace lockstep::ckpt
