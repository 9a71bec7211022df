// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "modules/named_tensors.h"

namespace lockstep::modules {

// One line: "parameter fc1.weight\tFloat[500, 1600] on cpu", with strides where the tensor is not contiguous.
std::string describe(const std::string& kind, const NamedTensor& item);

// A description of a module that must be the same on all ranks.
struct ModuleText {
  std::string user;    // the caller, for messages: "DistributedDataParallel"
  std::string lines;   // compared
  std::string advice;  // for the error
};

// Throws DesyncError on every rank unless all ranks have the same lines; the error names the first that
// differs and where.
void check_same_on_all_ranks(const ProcessGroup& group, const ModuleText& own, std::source_location where);

// In place of check_same_on_all_ranks() in each of the groups, on a rank that throws `reason`. Groups with
// Python ranks learn nothing.
void tell_failure(const std::vector<ProcessGroup>& groups, const char* user, const std::exception& reason,
                  std::source_location where);

// What `prepare` returns, which precedes check_same_on_all_ranks() in these groups. If it throws on this
// rank, the others' DesyncError has the reason.
template <class Prepare>
auto tell_on_failure(const std::vector<ProcessGroup>& groups, const char* user, std::source_location where,
                     const Prepare& prepare) {
  try {
    return prepare();
  } catch (const std::exception& error) {
    tell_failure(groups, user, error, where);
    throw;
  }
}

}  // namespace lockstep::modules
