// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/checkpoint/state_dict.h>

namespace lockstep::state {

// The dict with the keys that the options ask for: remove_prefix, add_prefix, then the rename rules. Throws
// ArgumentError for a pattern that is not a regular expression, CheckpointError for a key that cannot be renamed or
// that two keys would get.
Dict with_keys(Dict dict, const LoadStateDictOptions& options);

}  // namespace lockstep::state
