// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/pipelining/schedule.h>

// check_plan() is public.
namespace lockstep::pipelining {

// Throws ArgumentError unless the ranks of each pair make the calls of their messages in one order, as NCCL
// needs. The plan has passed check_plan().
void check_order_of_pairs(const Plan& plan);

}  // namespace lockstep::pipelining
