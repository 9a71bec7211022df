// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

// Converts nested values to the entries of a distributed checkpoint and back. PyTorch: `flatten_state_dict`.
namespace lockstep::distributed_checkpoint {

struct Leaf {
  Tuple path;  // the keys and indices that lead to it
  const Value* value;
};

bool is_tensor(const Value& value);

// Splits dicts, and lists that contain tensors or dicts. Points into `contents`.
std::vector<Leaf> flatten(const Dict& contents);

// Like flatten(), for mutable values; passes each with its name.
void for_each_leaf(Dict& contents, const std::function<void(const std::string& name, Value& value)>& visit);

// The keys and indices of a path, joined by dots.
std::string name_of(const Tuple& path);

// The dicts and lists of `contents` with the names of their entries. It keeps what names lose: non-string
// keys and kinds of dicts.
Value structure_of(const Dict& contents);
// The inverse of structure_of(): `read` returns the value of each name. Throws CheckpointError for a
// duplicate name.
Value fill_structure(const Value& structure, const std::function<Value(const std::string& name)>& read);

// The dict or list whose entries have names that begin with `name` and a dot, or nullptr.
const Value* find_structure(const Value& structure, const std::string& name);

// Sets a value at a path and creates dicts and lists on the way. parse_metadata() has limited lengths and
// depth.
void place_at(Value& root, const std::vector<Value>& path, Value value);

}  // namespace lockstep::distributed_checkpoint
