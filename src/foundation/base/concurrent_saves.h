// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <sys/types.h>

namespace lockstep {

// Notices that other ranks of a job save a file while this process saves it: between the construction and
// warn_if_any() another process has replaced the file. Costs two calls of stat(2).
class ConcurrentSaves {
 public:
  explicit ConcurrentSaves(std::filesystem::path file);
  // Logs a warning, once per process. Does nothing in a job of one rank.
  void warn_if_any() const;
  // This process has replaced a file.
  static void saved();

 private:
  struct Identity {
    dev_t device;
    ino_t number;
    bool operator==(const Identity&) const = default;
  };
  static std::optional<Identity> identity_of(const std::filesystem::path& file);

  std::filesystem::path file_;
  std::optional<Identity> before_;
  std::uint64_t own_saves_before_;
};

}  // namespace lockstep
