// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include "base/unique_fd.h"

namespace lockstep {

struct AtomicFileOptions {
  // What is appended to the final name while writing. A leftover of a killed writer is removed.
  std::string suffix = ".part";
  // The data and the name have reached the disk when commit() returns.
  bool sync = true;
};

// The new file exists, but its folder could not be synced: after a power failure the old file may be back.
class NotOnDisk : public std::system_error {
 public:
  using std::system_error::system_error;
};

// A file that appears under its name whole or not at all, also when the process or the machine stops in the
// middle: until commit() the old file stays as it is; the new one has its permissions. One writer at a time.
// Every error is a std::system_error with errno's code.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path file, AtomicFileOptions options = {});
  // Without commit() the unfinished file is removed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Bytes written so far.
  std::uint64_t size() const { return size_; }
  // Throws NotOnDisk when only syncing the folder failed.
  void commit();

 private:
  std::filesystem::path file_;
  AtomicFileOptions options_;
  std::filesystem::path part_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  bool committed_ = false;
};

// Creates a folder and its parents; with `sync` their names are on the disk. Throws
// std::system_error.
void make_folders(const std::filesystem::path& folder, bool sync = true);

// Syncs the names in `folder` to the disk, if the file system can sync folders.
void sync_folder(const std::filesystem::path& folder);

}  // namespace lockstep
