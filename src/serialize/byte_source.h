// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <c10/core/Storage.h>

#include <lockstep/base/unique_fd.h>

namespace lockstep::serialize {

/// Bytes at rest, of a file or in memory. Offsets beyond the end are errors, never reads. Threads may read at
/// once. Errors are CheckpointErrors naming the source.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;
  virtual std::uint64_t size() const = 0;
  /// Storage that holds these bytes on the CPU; of its own, or private pages of a mapped file where they lie
  /// at a multiple of `alignment`.
  virtual c10::Storage storage(std::uint64_t offset, std::uint64_t bytes,
                               std::size_t alignment = alignof(std::max_align_t)) const = 0;
  void read(std::uint64_t offset, std::span<char> into) const;
  std::string read_text(std::uint64_t offset, std::uint64_t bytes) const;

 protected:
  virtual void do_read(std::uint64_t offset, std::span<char> into) const = 0;
  /// Throws unless the source has these bytes.
  void check_range(std::uint64_t offset, std::uint64_t bytes) const;
};

/// `mapped`: storages are pages of the file, read when touched and copied when written to.
std::unique_ptr<ByteSource> open_file(const std::filesystem::path& file, bool mapped);

/// Bytes of a file as a source of their own; errors name the file.
struct FilePart {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
std::unique_ptr<ByteSource> open_part(const std::filesystem::path& file, const FilePart& part);

/// Throws the CheckpointError that `code`, of a failure to read `file`, stands for: CheckpointReadError
/// unless there is no such file.
[[noreturn]] void fail_to_read(const std::string& file, int code);

/// `bytes` must outlive the source, not the storages made of it.
std::unique_ptr<ByteSource> open_bytes(std::span<const char> bytes, std::string name);

}  // namespace lockstep::serialize
