// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/serialize/torch_file.h>
#include <lockstep/serialize/value.h>

/// Hugging Face's format of named tensors. Every error is a CheckpointError that names the file. The header
/// is not trusted: time and memory are proportional to its size, which is at most 100 MB. Duplicate keys and
/// space before the header are errors, unlike in the Python package; unknown fields are ignored. F4 and F6
/// are not supported, because PyTorch has no dtype of less than a byte.
namespace lockstep::safetensors {

/// The entries of `__metadata__`.
using Metadata = std::map<std::string, std::string>;

/// Loads every tensor of a file, in the order of its header. The format has no checksums, so `options.verify`
/// has no effect. Throws CheckpointError. Python: safetensors.torch.load_file(filename, device).
Dict load_file(const std::filesystem::path& file, const LoadOptions& options = {});

/// Options of save_file().
struct SaveFileOptions {
  /// Written sorted by key. Omitted when empty.
  Metadata metadata = {};
  /// save_file() returns after the data has reached the disk.
  bool sync = true;
};

/// Writes a flat dict of tensors or parameters by name. The bytes equal those of Python's
/// safetensors.torch.save_file, which orders tensors by dtype and name. The file is replaced atomically.
/// Tensors on other devices are copied one at a time. Non-contiguous tensors, an error in Python, are written
/// as contiguous copies. Throws CheckpointError, for tensors that share memory too, as in Python: they would
/// no longer share it after loading. After an error in `tensors` nothing has been written.
void save_file(const Dict& tensors, const std::filesystem::path& file, const SaveFileOptions& options = {});

/// Options of save_directory().
struct SaveDirectoryOptions {
  /// Bytes of tensors in a file. A larger tensor has a file of its own.
  std::uint64_t max_shard_size = 5'000'000'000;
  /// Of every file.
  Metadata metadata = {{"format", "pt"}};
  bool sync = true;  ///< as SaveFileOptions::sync
};

/// Writes a flat dict of tensors as model hubs have it: `model.safetensors` or, for more bytes than fit one
/// file, `model-00001-of-0000N.safetensors` and so on with `model.safetensors.index.json`. Files of an
/// earlier call that are not needed any more are removed. The folder has no index while files are replaced.
/// One thread or process at a time writes a folder, others wait up to 30 minutes: it never has files of two
/// calls. A file system without locks, or with locks of one host, does not guarantee it to others.
/// Throws CheckpointError as save_file() does. Python: huggingface_hub.save_torch_state_dict, with the same
/// bytes.
void save_torch_state_dict(const Dict& state_dict, const std::filesystem::path& save_directory,
                           const SaveDirectoryOptions& options = {});

/// Loads every tensor of such a folder, of an index (`*.index.json`) and its files, or of one file. Throws
/// CheckpointError that names the file.
Dict load_torch_state_dict(const std::filesystem::path& checkpoint_path, const LoadOptions& options = {});

/// An open file: reads the header at once and tensors on request. Const functions are thread-safe. Python:
/// safetensors.safe_open.
class SafeOpen {
 public:
  /// Tensors are placed on `device`; at::kMeta gives shapes and dtypes only. On the CPU, tensors are pages of
  /// the file that are read on first access and copied on write. All results of get_tensor() for one name
  /// share them. They may outlive this object. The file must not be truncated while they exist.
  explicit SafeOpen(const std::filesystem::path& file, at::Device device = at::kCPU);
  SafeOpen(const SafeOpen&) = delete;
  SafeOpen& operator=(const SafeOpen&) = delete;
  SafeOpen(SafeOpen&&) noexcept;
  SafeOpen& operator=(SafeOpen&&) noexcept;
  ~SafeOpen();

  /// The tensor names, in the order of the header.
  std::vector<std::string> keys() const;
  /// Whether the file has a tensor of this name.
  bool contains(std::string_view name) const;
  /// The metadata of the file.
  const Metadata& metadata() const;
  // Each throws CheckpointError when the file has no such tensor; the message lists the names.
  /// Reads a tensor. Throws CheckpointError for a name that the file does not have.
  at::Tensor get_tensor(std::string_view name) const;
  /// The shape of a tensor, without reading it.
  const std::vector<std::int64_t>& shape(std::string_view name) const;
  /// The dtype of a tensor, without reading it.
  at::ScalarType dtype(std::string_view name) const;
  std::uint64_t nbytes(std::string_view name) const;  ///< size of its data in the file

 private:
  class File;
  std::unique_ptr<const File> file_;
};

}  // namespace lockstep::safetensors
