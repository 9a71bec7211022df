// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <source_location>
#include <span>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

/// A file exists but cannot be read: permission, a failing disk, too many open files, no memory, or a format
/// of a later version. The file may be intact.
/// Data: file().
/// Remedy: remove what keeps it from being read, and load it again; do not delete it. PyTorch: `OSError`.
class CheckpointReadError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A device, or PyTorch's name of one, such as "cuda:1". Throws ArgumentError for other names.
class MapLocation {
 public:
  MapLocation(at::Device device) : device_(device) {}
  MapLocation(at::DeviceType device) : device_(device) {}
  MapLocation(const std::string& device);
  MapLocation(const char* device) : MapLocation(std::string(device)) {}
  operator at::Device() const { return device_; }
  /// The device to which tensors are loaded.
  at::Device device() const { return device_; }

 private:
  at::Device device_;
};

/// PyTorch's `weights_only`, which is always true: load() runs no code of the file. False does not compile.
class WeightsOnly {
 public:
  consteval WeightsOnly(bool value) {  // NOLINT: implicit by design
    if (!value) load_runs_no_code_of_a_file();
  }

 private:
  static void load_runs_no_code_of_a_file() {}
};

/// Options of load(). PyTorch: the arguments of torch.load.
struct LoadOptions {
  /// The device of the tensors. "meta": shapes and dtypes only; the data is not read.
  MapLocation map_location = at::kCPU;
  WeightsOnly weights_only = true;  ///< true: load() reads plain data and tensors
  /// Tensors are pages of the file, read on first access and copied on write. The file must not be truncated
  /// while they exist; it may be replaced by a rename, as save() does.
  bool mmap = false;
  /// Verify every checksum in the file. Reads the whole file.
  bool verify = false;
};

/// Loads a file that torch.save() wrote, in the zip format or the legacy one. No code in the file is run.
/// Views of one storage share it again. Time and memory are proportional to the file size, whatever its
/// contents. Throws CheckpointError that names the file (damaged, truncated, not plain data), and
/// CheckpointReadError. Thread-safe. PyTorch: `torch.load(file, weights_only=True)`.
Value load(const std::filesystem::path& file, const LoadOptions& options = {},
           std::source_location where = std::source_location::current());

inline Value load(const std::filesystem::path& file, MapLocation map_location,
                  std::source_location where = std::source_location::current()) {
  return load(file, LoadOptions{.map_location = map_location}, where);
}

/// Like load(), from memory. `name` appears in messages.
Value load_bytes(std::span<const char> bytes, const LoadOptions& options = {},
                 const std::string& name = "bytes",
                 std::source_location where = std::source_location::current());

/// Options of save().
struct SaveOptions {
  /// save() returns after the data has reached the disk.
  bool sync = true;
};

/// Writes a file that Python reads with torch.load(file, weights_only=True). The file is replaced atomically.
/// A tensor is written with its whole storage, as in Python; clone() a small view of a large tensor first.
/// Tensors must not change during the call. Throws CheckpointError: the file cannot be written (full disk,
/// permission), or Python has no equivalent of the value. PyTorch: `torch.save`.
void save(const Value& value, const std::filesystem::path& file, const SaveOptions& options = {},
          std::source_location where = std::source_location::current());

/// Like save(), into memory.
std::string save_bytes(const Value& value, std::source_location where = std::source_location::current());

}  // namespace lockstep
