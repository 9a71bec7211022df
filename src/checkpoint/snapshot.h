// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/serialize/value.h>

#include "checkpoint/tensor_copies.h"
#include "serialize/pickler.h"

namespace lockstep::checkpointing {

/// Copies of values for a thread that writes them while training goes on. Uses the memory of the copy before
/// again, which is then gone. For one thread.
class Snapshot {
 public:
  const serialize::Pickled& take(const Value& value);

 private:
  TensorCopies memory_;
  serialize::Pickled copy_;
};

}  // namespace lockstep::checkpointing
