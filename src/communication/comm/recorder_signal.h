// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::comm {

// From now on the signal that LOCKSTEP_RECORDER_SIGNAL names, SIGUSR1 or SIGUSR2, writes the recorder files of all ranks of this
// host to the folder LOCKSTEP_RECORDER_DIR, unless another rank of this host does it for the same signal. It holds until the
// process ends or the program sets a handler of its own, which StopSignals does not do. A thread of its own writes, so that it
// works while this rank is stuck. Does nothing without the variable, and after the first call. Throws ArgumentError for another
// value, without LOCKSTEP_RECORDER_DIR, and if the program handles the signal already.
void write_recorder_files_on_signal();

// Whether `signal` writes recorder files in this process.
bool is_recorder_signal(int signal);

}  // namespace lockstep::comm
