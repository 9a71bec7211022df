// SPDX-License-Identifier: BSD-3-Clause
#include "base/version.h"

#include <fmt/format.h>

namespace lockstep {

std::string lockstep_version() { return LOCKSTEP_VERSION; }

std::string reason_not_to_read(const Format& format, std::uint64_t found) {
  if (found <= format.number) return "";
  return fmt::format(
      "written by a later Lockstep in {} format {}; this version, {}, reads up to {}: update Lockstep",
      format.name, found, lockstep_version(), format.number);
}

}  // namespace lockstep
