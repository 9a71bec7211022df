// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace lockstep::observe {

// Frames of Python functions in the threads of a process.
struct PythonFrames {
  std::map<int, std::vector<std::string>> threads{};  // innermost first: "Python: Loader.read at train.py:22"
  std::string
      problem{};  // why they are not known, in a sentence; empty if they are, and for a process without Python
};

// Those of a process of this user, as py-spy sees them, for at most 5 s and until `deadline`, which several processes may
// share. The process is not stopped for it. Control characters are replaced.
PythonFrames python_frames_of(int pid, const Deadline& deadline);

// What `py-spy dump --json` has printed. Throws Error for another text.
PythonFrames python_frames_from(const std::string& json);

}  // namespace lockstep::observe
