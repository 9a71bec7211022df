// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>

#include <lockstep/serialize/value.h>

namespace lockstep::ckpt {

struct Stripped {
  Dict dict;
  std::size_t renamed = 0;
};

/// A state dict whose keys have lost `prefix` where they had it, and so have those of its `_metadata`. Throws
/// CheckpointError when two keys would be one.
Stripped strip_prefix(const Dict& dict, const std::string& prefix);

}  // namespace lockstep::ckpt
