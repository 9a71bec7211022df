// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::testing {

// What one rank found in one training run: its losses, then each parameter and buffer by name.
struct Record {
  std::string name;
  std::vector<float> values = {};
};

std::filesystem::path record_file(const std::filesystem::path& folder, const std::string& name, int rank);

// A file is, for each record, a line "name count" and the values as they lie in memory.
void write_records(const std::filesystem::path& file, const std::vector<Record>& records);
// Throws naming the file when it is missing or cut short.
std::vector<Record> read_records(const std::filesystem::path& file);

// Empty when both have the same bits; else how many values differ, and the first one on both sides.
std::string first_difference(const Record& python, const Record& ours);

}  // namespace lockstep::testing
