// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::serialize {

/// Where a writer's bytes go, in order.
using Sink = std::function<void(std::span<const std::byte>)>;

/// Writes a zip file of stored records as LibTorch's PyTorchStreamWriter lays it out, byte for byte: data at
/// multiples of 64, checksums behind it. (LibTorch's computes each checksum before it writes the record, in
/// the same thread, and ends the program when a write fails.) What the sink throws comes out.
class ZipWriter {
 public:
  explicit ZipWriter(Sink sink) : sink_(std::move(sink)) {}
  /// `checksum` (CRC-32 of the data) is asked for once the data has been written, so that it may be computed
  /// meanwhile.
  void add(std::string_view name, std::span<const std::byte> data,
           const std::function<std::uint32_t()>& checksum);
  /// A short one.
  void add(std::string_view name, std::string_view text);
  /// The format's version, the file's identification, and the table of contents.
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
