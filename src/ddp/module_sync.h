// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <string>

#include <lockstep/comm/process_group.h>

#include "ddp/trained_parameters.h"

namespace lockstep::ddp {

// Throws DesyncError on every rank unless all ranks have the same parameters and buffers (names, dtypes,
// shapes, requires_grad) and the same `options_text`; the error names what differs and where.
void check_same_on_all_ranks(const ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                             const std::vector<NamedTensor>& buffers, const std::string& options_text,
                             std::source_location where);

// Makes the tensors equal to those of rank `source`: large ones as they lie, the others in as few broadcasts
// as their types allow.
void broadcast_from(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                    std::source_location where);

}  // namespace lockstep::ddp
