// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

// The files of a distributed checkpoint besides its table.
namespace lockstep::distributed_checkpoint {

/// What a rank writes in the save that has `token`.
std::string data_file(std::size_t rank, const std::string& token);

/// Their names: those of any save, Python's, and what killed writers left.
std::vector<std::string> data_files(const std::filesystem::path& folder);

}  // namespace lockstep::distributed_checkpoint
