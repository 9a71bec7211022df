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
