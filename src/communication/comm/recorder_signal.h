// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::comm {

// From now on the signal that LOCKSTEP_RECORDER_SIGNAL names, SIGUSR1 or SIGUSR2, writes the recorder files of all ranks of this
// host to the folder LOCKSTEP_RECORDER_DIR, until the process ends. A thread of its own does it, so that it works while this rank
// is stuck. Does nothing without the variable, and after the first call. Throws ArgumentError for another value, without
// LOCKSTEP_RECORDER_DIR, and if the program handles the signal.
void write_recorder_files_on_signal();

}  // namespace lockstep::comm
