// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "observe/run.h"

namespace lockstep::observe {

// Where ranks write recorder files when a call fails.
inline constexpr const char* kRecorderVariable = "LOCKSTEP_RECORDER_DIR";

// Writes into `folder`, which it creates: for each rank a file rank_<number> that PyTorch's torchfrtrace reads, and
// <host>.<first rank>.json with all that is known of the run. Their mode is 0600. Returns their paths. Throws Error.
std::vector<std::filesystem::path> write_recorder_files(const Run& run, const std::filesystem::path& folder);

// Writes them unless a process has begun to do so within the last minute: the first failure is the cause of
// the others.
void keep_recorder_files(const Run& run, const std::filesystem::path& folder);

// Writes them, in place of those of before, unless another process of this host does so now or did so within the last two
// seconds: a signal reaches all ranks of a host. Returns whether it wrote them. Throws Error.
bool replace_recorder_files(const Run& run, const std::filesystem::path& folder);

// The run whose files are in `folder`, those of all its hosts. Throws Error.
Run read_recorder_files(const std::filesystem::path& folder);

// The bytes of a pickle, protocol 2, of a JSON value: dict, list, str, int, float, bool and None.
std::string pickle_of(const nlohmann::json& value);

}  // namespace lockstep::observe
