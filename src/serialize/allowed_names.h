// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "serialize/pickle_reader.h"

namespace lockstep::serialize {

/// What Python's weights_only loader allows by default and Lockstep has an equal of, and numpy's scalars.
pickle::AllowedNames names_in_checkpoints();

/// What the tables of torch.distributed.checkpoint are made of.
pickle::AllowedNames names_in_distributed_checkpoints();

}  // namespace lockstep::serialize
