// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/base/deadline.h>

#include "data/progress.h"

namespace lockstep::data {

/// Fetches a http, https or file URL into memory, following redirects. Throws DataError saying why it failed:
/// no connection within `connect_timeout`, an HTTP error status, a transfer that stalls, or the deadline.
std::vector<std::uint8_t> fetch_url(const std::string& url, const Deadline& deadline,
                                    std::chrono::milliseconds connect_timeout, Progress& progress);

}  // namespace lockstep::data
