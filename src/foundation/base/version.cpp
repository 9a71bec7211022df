// SPDX-License-Identifier: BSD-3-Clause
#include "base/version.h"

#include <fmt/format.h>

#include <lockstep/version.h>

namespace lockstep {

std::string version() {
  return fmt::format("{}.{}.{}", LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, LOCKSTEP_VERSION_PATCH);
}

std::string reason_not_to_read(const Format& format, std::uint64_t found) {
  if (found <= format.number) return "";
  return fmt::format(
      "written by a later Lockstep in {} format {}; this version, {}, reads up to {}: update Lockstep",
      format.name, found, lockstep::version(), format.number);
}

}  // namespace lockstep
