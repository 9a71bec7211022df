// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>

#include "base/concurrent_saves.h"
#include "base/unfinished_file.h"
#include "base/unique_fd.h"

namespace lockstep {

struct AtomicFileOptions {
  // The data and the name have reached the disk when commit() returns.
  bool sync = true;
  // One rank should write the file. commit() warns once per process if other ranks write it at the same time.
  bool for_one_rank = false;
};

// The new file exists, but its folder could not be synced: after a power failure the old file may be back.
class NotOnDisk : public std::system_error {
 public:
  using std::system_error::system_error;
};

// A file that appears under its name whole or not at all, even if the process or the machine stops in the
// middle: until commit() the old file stays as it is. Any number of processes and threads may write the same
// file at the same time; the last commit() stays. What killed writers left in the folder is removed.
//
// The new file has the permissions of the old one, which may be read-only. A symbolic link is replaced, not
// followed. A device, a pipe or a file of /proc, such as /dev/stdout, is written in place. Every error is a
// std::system_error with errno's code. Not thread-safe.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path file, const AtomicFileOptions& options = {});
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Bytes written so far.
  std::uint64_t size() const { return size_; }
  // Without it the destructor drops what was written. Throws NotOnDisk when only syncing the folder failed.
  void commit();

 private:
  [[noreturn]] void fail() const;
  int fd() const { return unfinished_ ? unfinished_->fd() : special_.get(); }
  void start_write_back() const;
  void flush() const;

  std::filesystem::path file_;
  AtomicFileOptions options_;
  ConcurrentSaves others_;
  std::optional<UnfinishedFile> unfinished_;
  UniqueFd special_;  // of a file that is written in place
  std::uint64_t size_ = 0;
};

// Creates a folder and its parents; with `sync` their names are on the disk. Throws std::system_error.
void make_folders(const std::filesystem::path& folder, bool sync = true);

// Syncs the names in `folder` to the disk, if the file system can sync folders.
void sync_folder(const std::filesystem::path& folder);

}  // namespace lockstep
