// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <lockstep/comm/process_group.h>
#include <lockstep/training/logging.h>

namespace lockstep::training {

// Throws DesyncError on all ranks, with the name, if a number differs between them in name or bits.
// Collective.
void check_equal_numbers(const Scalars& numbers, const std::optional<ProcessGroup>& group);

}  // namespace lockstep::training
