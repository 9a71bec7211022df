// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/fsdp/memory_report.h>

namespace lockstep::fsdp {

// "12.5 MiB"
std::string bytes_text(std::int64_t bytes);
// A row for each category, and their sum.
std::string memory_table(const MemoryBytes& rank, const MemoryBytes& host, int ranks);

}  // namespace lockstep::fsdp
