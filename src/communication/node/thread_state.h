// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace lockstep::node {

// What the kernel reports about a thread of any process: "running", "stopped by a signal", "sleeping in
// futex_wait, called from libfoo.so+0x1234". Contains only what this process may see.
std::string describe_thread(int tid);

}  // namespace lockstep::node
