// SPDX-License-Identifier: BSD-3-Clause
// In place of http.cpp where libcurl is to be done without.
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "data/http.h"

namespace lockstep::data {

std::vector<std::uint8_t> fetch_url(const std::string& url, const Deadline&, std::chrono::milliseconds,
                                    Progress&) {
  throw DataError(fmt::format("{}: this build of Lockstep cannot download (LOCKSTEP_WITH_CURL=OFF)", url));
}

}  // namespace lockstep::data
