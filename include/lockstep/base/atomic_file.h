// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include <lockstep/base/unique_fd.h>

namespace lockstep {

struct AtomicFileOptions {
  /// What is appended to the final name while writing. A leftover of a writer that was killed is removed.
  std::string suffix = ".part";
  /// The data and the name have reached the disk when commit() returns.
  bool sync = true;
};

/// The new file is in its place, but the folder could not be synced: after a power cut it may be gone.
class NotOnDisk : public std::system_error {
 public:
  using std::system_error::system_error;
};

/// A file that appears under its name whole or not at all, also when the process or the machine stops in the
/// middle: until commit() the old file stays as it is; the new one has its permissions. One writer at a time.
/// Every error is a std::system_error with errno's code.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path file, AtomicFileOptions options = {});
  /// Without commit() the unfinished file is removed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Bytes written so far.
  std::uint64_t size() const { return size_; }
  /// Throws NotOnDisk when the new file is there nevertheless.
  void commit();

 private:
  std::filesystem::path file_;
  AtomicFileOptions options_;
  std::filesystem::path part_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  bool committed_ = false;
};

/// A folder and those above it that are missing; with `sync` their names have reached the disk. Throws
/// std::system_error.
void make_folders(const std::filesystem::path& folder, bool sync = true);

/// Makes changes of names in `folder` last. A file system that cannot sync a folder has nothing more to
/// offer.
void sync_folder(const std::filesystem::path& folder);

}  // namespace lockstep
