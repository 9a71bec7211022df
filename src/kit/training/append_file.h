// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::training {

// A file that grows by whole records. Nothing is buffered: a record is with the kernel when append() returns.
// Every error is an Error that names the file.
class AppendFile {
 public:
  // Opens the file, with `size` bytes of what it has, and makes it and its folders if there is none.
  AppendFile(std::filesystem::path file, std::uint64_t size);

  // The file keeps its size when it throws, unless the disk is broken.
  void append(std::string_view record);
  // Returns when everything is on the disk.
  void sync();

 private:
  [[noreturn]] void fail(int code) const;

  std::filesystem::path file_;
  UniqueFd fd_;
  std::uint64_t size_;
};

}  // namespace lockstep::training
