// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

/// A file is there and cannot be read: permission, a failing disk, too many open files, no memory. It may be
/// whole.
class CheckpointReadError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// PyTorch: the arguments of torch.load.
struct LoadOptions {
  /// Where tensors go. at::kMeta: shapes and dtypes only; the data is not read.
  at::Device map_location = at::kCPU;
  /// Tensors are pages of the file: read when first touched, copied when written to. The file must not be
  /// shortened while they live; replacing it by rename, as save() does, is fine.
  bool mmap = false;
  /// Compare every checksum that the file has. Reads it whole.
  bool verify = false;
};

/// What Python's torch.save wrote, zip format or the older one; as torch.load(weights_only=True), and no
/// Python is needed. Nothing in the file is ever run. Views of one storage share it again. Throws
/// CheckpointError naming the file: damaged or cut short, holding what is no plain data, ...; and
/// CheckpointReadError. Time and memory are proportional to the size of the file, whatever is in it. Any
/// thread.
Value load(const std::filesystem::path& file, const LoadOptions& options = {});

/// The same from memory; `name` is for messages.
Value load_bytes(std::span<const char> bytes, const LoadOptions& options = {},
                 const std::string& name = "bytes");

struct SaveOptions {
  /// The data has reached the disk when save() returns.
  bool sync = true;
};

/// Writes what torch.load(file, weights_only=True) opens in Python as the plain structure. PyTorch:
/// torch.save. The file appears whole or not at all: an older one of that name stays until the new one is
/// complete. A tensor brings its whole storage along, as in Python: clone() a small view of a large tensor
/// first. Tensors must not change meanwhile. Throws CheckpointError: the file cannot be written (full disk,
/// permission, ...), or the value has what Python cannot hold.
void save(const Value& value, const std::filesystem::path& file, const SaveOptions& options = {});

/// The same into memory.
std::string save_bytes(const Value& value);

}  // namespace lockstep
