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

// The directory of a zip file with uncompressed records, as PyTorch writes it. (LibTorch's reader does not
// expose checksums and offsets.) `source` must outlive the object.
class ZipReader {
 public:
  // Throws CheckpointError: damaged, compressed or encrypted records, or records that overlap.
  explicit ZipReader(const ByteSource& source);

  static bool looks_like_zip(const ByteSource& source);

  const ByteSource& source() const { return source_; }
  const std::map<std::string, ZipRecord, std::less<>>& records() const { return records_; }
  const ZipRecord* find(std::string_view name) const;
  // The offset of a record's data.
  std::uint64_t offset(const ZipRecord& record) const;
  std::string read(const ZipRecord& record) const;
  // Throws CheckpointError that names a record whose bytes do not have its checksum. A file without
  // checksums, which Python writes on request, passes.
  void verify_checksums() const;

 private:
  [[noreturn]] void fail(std::string_view what) const;
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);

  const ByteSource& source_;
  std::map<std::string, ZipRecord, std::less<>> records_;
};

}  // namespace lockstep::serialize
