// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/shm/request.h"
#include "comm/direct_calls.h"

namespace lockstep::shm {

// Whether the call is right in every way, plain (contiguous tensors of the CPU that are not empty), and small
// enough for what this rank brings to lie beside its post; a message, for one chunk.
bool fits_directly(const comm::DirectCall& call, int rank, int size);

// What is asked for by a collective that fits. All of `request` but its log number is written anew.
void fill(Request& request, const comm::DirectCall& call, int size);

}  // namespace lockstep::shm
