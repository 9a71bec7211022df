// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <string>

#include <lockstep/comm/process_group.h>

#include "ddp/trained_parameters.h"

namespace lockstep::ddp {

// One line: "parameter fc1.weight\tFloat[500, 1600]", with strides where the tensor is not contiguous.
std::string describe(const char* kind, const NamedTensor& item);

// What has to be the same on all ranks.
struct ModuleText {
  const char* user = "";    // who asks: "DistributedDataParallel"
  std::string lines = {};   // what is compared
  const char* advice = "";  // for those whose modules differ
};

// Throws DesyncError on every rank unless all ranks have the same lines; the error names the first that
// differs and where.
void check_same_on_all_ranks(const ProcessGroup& group, const ModuleText& own, std::source_location where);

// Makes the tensors equal to those of rank `source`: large ones as they lie, the others in as few broadcasts
// as their types allow.
void broadcast_from(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                    std::source_location where);

}  // namespace lockstep::ddp
