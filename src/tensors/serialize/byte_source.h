// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <c10/core/Storage.h>

#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"

namespace lockstep::serialize {

// The bytes of a file or a memory range. Reads beyond the end throw. Thread-safe. Errors are CheckpointErrors
// that name the source.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;
  virtual std::uint64_t size() const = 0;
  // A CPU storage with these bytes: a copy, or private pages of a mapped file if `offset` is a multiple of
  // `alignment`.
  virtual c10::Storage storage(std::uint64_t offset, std::uint64_t bytes,
                               std::size_t alignment = alignof(std::max_align_t)) const = 0;
  void read(std::uint64_t offset, std::span<char> into) const;
  std::string read_text(std::uint64_t offset, std::uint64_t bytes) const;

 protected:
  virtual void do_read(std::uint64_t offset, std::span<char> into) const = 0;
  // Throws unless the range is within the source.
  void check_range(std::uint64_t offset, std::uint64_t bytes) const;
};

// `mapped`: storages are pages of the file, read on first access and copied on write.
std::unique_ptr<ByteSource> open_file(const std::filesystem::path& file, bool mapped);

// A range of a file.
struct FilePart {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
std::unique_ptr<ByteSource> open_part(const std::filesystem::path& file, const FilePart& part);

// Throws the error for errno value `code`: CheckpointError if the file does not exist, otherwise
// CheckpointReadError.
[[noreturn]] void fail_to_read(const std::string& file, int code);

// Uninitialized memory for bytes of the source `name`. Throws CheckpointReadError when there is not enough.
c10::Storage empty_storage(std::uint64_t bytes, const std::string& name);

// `bytes` must outlive the source, but not its storages.
std::unique_ptr<ByteSource> open_bytes(std::span<const char> bytes, std::string name);

}  // namespace lockstep::serialize

namespace lockstep {

// Runs `action` and prefixes its CheckpointErrors with `source`, unless they begin with it.
template <typename Action>
auto with_source(const std::string& source, Action action) {
  try {
    return action();
  } catch (const CheckpointReadError&) {
    throw;
  } catch (const CheckpointError& error) {
    if (std::string_view(error.what()).starts_with(source)) throw;
    throw_error<CheckpointError>(error.details(), "{}: {}", source, error.what());
  }
}

}  // namespace lockstep
