// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

// Nested values as the entries of a distributed checkpoint, and back. PyTorch: `flatten_state_dict`.
namespace lockstep::distributed_checkpoint {

struct Leaf {
  Tuple path;  ///< the keys and indices that lead to it
  const Value* value;
};

bool is_tensor(const Value& value);

/// Dicts are taken apart, and lists that have tensors or dicts in them. Points into `contents`.
std::vector<Leaf> flatten(const Dict& contents);

/// As flatten(), for values to be changed: `visit` is given each with its name.
void for_each_leaf(Dict& contents, const std::function<void(const std::string& name, Value& value)>& visit);

/// The steps of a path, joined by dots.
std::string name_of(const Tuple& path);

/// The dicts and lists of `contents`, with the name of each entry in its place: what names alone do not tell,
/// which are keys that are no strings and kinds of dicts.
Value structure_of(const Dict& contents);
/// The other way round: `read` is given each name once. Throws CheckpointError for a structure that has a
/// name twice.
Value fill_structure(const Value& structure, const std::function<Value(const std::string& name)>& read);

/// The dict or list of a structure whose entries have names that begin with `name` and a dot; nullptr when
/// there is none.
const Value* find_structure(const Value& structure, const std::string& name);

/// Sets a value under keys and indices, making the dicts and lists on the way; these are as long and as deep
/// as the path says, which parse_table() has bounded.
void place_at(Value& root, const std::vector<Value>& path, Value value);

}  // namespace lockstep::distributed_checkpoint
