// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "serialize/byte_source.h"

namespace lockstep::serialize {

struct ZipRecord {
  std::uint64_t header = 0;  // of the local header
  std::uint64_t size = 0;    // in bytes
  std::uint32_t crc = 0;
};

/// The table of contents of a zip file whose records are stored, not compressed, as PyTorch writes them.
/// (LibTorch has a reader too; it hides the checksums, and where a record lies in the file.) `source` must
/// outlive this.
class ZipReader {
 public:
  /// Throws CheckpointError: damaged, compressed or encrypted records, or records that overlap.
  explicit ZipReader(const ByteSource& source);

  static bool looks_like_zip(const ByteSource& source);

  const ByteSource& source() const { return source_; }
  const std::map<std::string, ZipRecord, std::less<>>& records() const { return records_; }
  const ZipRecord* find(std::string_view name) const;
  /// Where the bytes of a record start.
  std::uint64_t offset(const ZipRecord& record) const;
  std::string read(const ZipRecord& record) const;

 private:
  [[noreturn]] void fail(std::string_view what) const;
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);

  const ByteSource& source_;
  std::map<std::string, ZipRecord, std::less<>> records_;
};

}  // namespace lockstep::serialize
