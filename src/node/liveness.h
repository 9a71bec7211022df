// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace lockstep::node {

// A process that has been killed may take long to be gone: on a busy machine it waits for its turn to die,
// and then its memory is taken down. Its pidfd tells only when that is over. The kernel tells earlier that
// none of its threads will run any more of its program.

// The process behind a pidfd as this process sees it, or 0 when it cannot: another pid namespace, or it is
// gone.
int process_of_pidfd(int pidfd);

// Whether the process can do nothing any more: each of its threads is ending or has a SIGKILL before it.
// False where that cannot be seen.
bool is_exiting(int pid);

// The same of the thread that a line of /proc/<pid>/stat is about.
bool is_thread_exiting(const std::string& stat);

}  // namespace lockstep::node
