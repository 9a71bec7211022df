// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serialize/byte_source.h"

namespace lockstep::serialize {

struct ZipRecord {
  std::uint64_t header = 0;  // of the local header
  std::uint64_t size = 0;    // in bytes
  std::uint64_t packed = 0;  // bytes in the file; equal to the size without compression
  std::uint32_t crc = 0;
  bool deflated = false;
};

// The directory of a zip file. (LibTorch's reader does not expose checksums and offsets.) `source` must
// outlive the object.
class ZipReader {
 public:
  // Throws CheckpointError: damaged or encrypted records, records that overlap, compression that is not
  // deflate.
  explicit ZipReader(const ByteSource& source);

  static bool looks_like_zip(const ByteSource& source);

  const ByteSource& source() const { return source_; }
  const std::map<std::string, ZipRecord, std::less<>>& records() const { return records_; }
  const ZipRecord* find(std::string_view name) const;
  // Throws CheckpointError that names a compressed record and what to do.
  void refuse_compression() const;
  // The offset of a record's data.
  std::uint64_t offset(const ZipRecord& record) const;
  // The contents of a record without compression.
  std::string read(const ZipRecord& record) const;
  // A CPU storage with the record's bytes. Without compression and at a multiple of `alignment`: as
  // ByteSource::storage(), which does not read a mapped file. Otherwise a copy with a verified checksum.
  c10::Storage storage(std::string_view name, const ZipRecord& record, std::size_t alignment) const;
  // Throws CheckpointError that names a record whose bytes do not have its checksum. A file without
  // checksums, which Python writes on request, passes.
  void verify_checksums() const;

 private:
  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void fail_checksum(std::string_view name, const ZipRecord& record, std::uint32_t found) const;
  void read_directory(std::uint64_t offset, std::uint64_t size, std::uint64_t count);
  void check_method(std::string_view name, const ZipRecord& record, std::uint16_t method) const;
  c10::Storage inflate(std::string_view name, const ZipRecord& record) const;

  const ByteSource& source_;
  std::map<std::string, ZipRecord, std::less<>> records_;
};

// Receives the bytes of a file in order.
using Sink = std::function<void(std::span<const std::byte>)>;

// Writes a zip file of uncompressed records, byte for byte like LibTorch's PyTorchStreamWriter: data at
// multiples of 64, followed by the checksum. (LibTorch's computes each checksum before it writes the record,
// in the same thread, and aborts when a write fails.) Exceptions of the sink propagate.
class ZipWriter {
 public:
  explicit ZipWriter(Sink sink) : sink_(std::move(sink)) {}
  // Calls `checksum`, the CRC-32 of the data, after writing the data, so that a thread can compute it
  // meanwhile.
  void add(std::string_view name, std::span<const std::byte> data,
           const std::function<std::uint32_t()>& checksum);
  // Adds a short record.
  void add(std::string_view name, std::string_view text);
  // Writes the version, the serialization id and the directory.
  void finish();

 private:
  struct Record {
    std::string name;
    std::uint64_t offset;
    std::uint64_t size;
    std::uint32_t crc;
  };

  void write(std::span<const std::byte> bytes);
  void write(const std::string& bytes);
  std::string identification() const;

  Sink sink_;
  std::uint64_t size_ = 0;
  std::vector<Record> records_;
};

}  // namespace lockstep::serialize
