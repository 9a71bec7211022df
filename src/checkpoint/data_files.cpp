// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/data_files.h"

#include <system_error>

#include <fmt/format.h>

namespace lockstep::distributed_checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kDataSuffix = ".distcp";

// Python's "__1_0.distcp", and what a killed writer left, "__1_0.distcp.part", too.
bool is_data_file(const std::string& name) {
  const auto dot = name.find(kDataSuffix);
  return name.starts_with("__") && dot != std::string::npos && name.find('_', 2) < dot;
}

}  // namespace

std::string data_file(std::size_t rank, const std::string& token) {
  return fmt::format("__{}_{}{}", rank, token, kDataSuffix);
}

std::vector<std::string> data_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (auto entry = fs::directory_iterator(folder, code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    auto name = entry->path().filename().string();
    if (is_data_file(name)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace lockstep::distributed_checkpoint
