// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temp_folder.h"

namespace lockstep::testing {

// A made-up /sys or /proc.
class FileTree {
 public:
  void write(const std::string& name, const std::string& text) const {
    const auto path = root() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

}  // namespace lockstep::testing
