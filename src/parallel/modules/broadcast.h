// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "modules/named_tensors.h"

namespace lockstep::modules {

// Throws ArgumentError, which names the tensor, unless the group can carry each and write to it. `otherwise`
// ends its advice (", or ...").
void check_can_be_sent(const ProcessGroup& group, const char* user, const std::vector<NamedTensor>& tensors,
                       const char* otherwise = "");

// Makes the tensors equal to those of rank `source`: large ones each in a broadcast of its own, the others
// flattened by type.
void broadcast_from(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                    std::source_location where);

// The tensors' values in one new row, which must not be empty, and back from it.
at::Tensor flattened(const std::vector<at::Tensor>& tensors);
void unflatten_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat);

}  // namespace lockstep::modules
