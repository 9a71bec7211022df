// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "parity/ddp_case.h"
#include "parity/ddp_record.h"

namespace lockstep::testing {

// Trains the case's net on this rank of the default group; ddp_training.py is the same in Python.
std::vector<Record> train_with_ddp(const DdpCase& each);

}  // namespace lockstep::testing
