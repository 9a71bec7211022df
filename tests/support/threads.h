// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace lockstep::testing {

/// The threads of this process. One that was joined has ended, but the kernel may still list it for a while.
inline std::size_t living_threads() {
  namespace fs = std::filesystem;
  constexpr unsigned long kExits = 0x4;  // PF_EXITING
  std::size_t count = 0;
  std::error_code code;
  for (fs::directory_iterator task("/proc/self/task", code), end; !code && task != end;
       task.increment(code)) {
    std::string text;
    std::getline(std::ifstream(task->path() / "stat"), text, '\0');
    if (text.empty()) continue;
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 6; ++i) fields >> skipped;
    unsigned long flags = 0;
    fields >> flags;
    if ((flags & kExits) == 0) ++count;
  }
  return count;
}

}  // namespace lockstep::testing
