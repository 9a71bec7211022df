// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <lockstep/machine/gpu.h>

namespace lockstep::machine {

// What is asked, in the order in which the parsers below take the answers.
std::vector<std::string> gpu_query();
std::vector<std::string> process_query();

// The rows of an answer that are whole; messages between them are passed over.
std::vector<Gpu> parse_gpus(const std::string& answer);

// A process and its GPU's UUID.
using PlacedProcess = std::pair<std::string, GpuProcess>;
std::vector<PlacedProcess> parse_processes(const std::string& answer);

}  // namespace lockstep::machine
