// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include <lockstep/serialize/value.h>

namespace lockstep::serialize {

struct Pickled {
  std::string pickle{};
  /// Storage i has the key "i".
  std::vector<c10::Storage> storages{};
};

/// Protocol 2, as torch.save uses it; with nothing in it that Python's weights_only loader refuses. Throws
/// CheckpointError for what Python could not hold: undefined, quantized, nested tensors, ...
Pickled pickle_value(const Value& value);

}  // namespace lockstep::serialize
