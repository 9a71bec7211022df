// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::gpu {

// Every collective, checked against what it means. Small whole numbers are exact in every type.
void check_collectives(const ProcessGroup& group, const c10::Device& device);
void check_objects(const ProcessGroup& group);

}  // namespace lockstep::gpu
