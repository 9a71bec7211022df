// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/shm/request.h"
#include "comm/call.h"

// Converts calls on tensors to requests of the core, which only handles bytes.
namespace lockstep::shm {

// The elements of a tensor; of its parts for a complex one. Only for dtypes that the backend carries.
Element element_of(c10::ScalarType dtype);

// The memory of a message's tensor.
Source source_of(const at::Tensor& tensor);
Target target_of(const at::Tensor& tensor);

// Whether the eager path can run the call: this rank's data fits beside its descriptor, or the message fits
// into one chunk.
bool is_eager(const comm::Call& call, int size);

// Rewrites all of `request` from a checked collective call. Reuses the request's memory.
void fill(Request& request, const comm::Call& call, int size);

}  // namespace lockstep::shm
