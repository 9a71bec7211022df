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

/// Hugging Face's format of named tensors. Every error is a CheckpointError naming the file: the header is
/// not trusted, and whatever is in it, time and memory are proportional to its size, at most 100 MB. Stricter
/// than the Python package: a key that comes twice, a field of a tensor that the format does not know, and
/// space before the header are refused. dtypes: those of the package that PyTorch has as whole bytes, so
/// neither F4 nor F6.
namespace lockstep::safetensors {

/// What a file may say about itself.
using Metadata = std::map<std::string, std::string>;

/// Every tensor of a file, in the order of its header. Python: safetensors.torch.load_file(filename, device).
/// The format has no checksums: `options.verify` changes nothing.
Dict load_file(const std::filesystem::path& file, const LoadOptions& options = {});

struct SaveOptions {
  /// Written sorted by key; nothing is written when there is none.
  Metadata metadata = {};
  /// The data has reached the disk when save_file() returns.
  bool sync = true;
};

/// Writes a flat dict of tensors (or parameters) by name, byte for byte as Python's
/// safetensors.torch.save_file does, which orders them by dtype and name. The file appears whole or not at
/// all. Tensors of other devices are copied one at a time; those that are not contiguous, which Python
/// refuses, are written as their contiguous copies. Tensors that share memory are refused, as in Python: they
/// would be apart after loading. Nothing is written after an error in what is to be saved.
void save_file(const Dict& tensors, const std::filesystem::path& file, const SaveOptions& options = {});

/// A file of which only the header has been read: tensors come when asked for. Python: safetensors.safe_open.
/// Any thread may use a const one.
class SafeOpen {
 public:
  /// Tensors go to `device`; at::kMeta: shapes and dtypes only. On the CPU they are pages of the file, shared
  /// by all that get_tensor() gives of one name: read when first touched, copied when written to. They may
  /// outlive this object; the file must not be shortened while they live.
  explicit SafeOpen(const std::filesystem::path& file, at::Device device = at::kCPU);
  SafeOpen(const SafeOpen&) = delete;
  SafeOpen& operator=(const SafeOpen&) = delete;
  SafeOpen(SafeOpen&&) noexcept;
  SafeOpen& operator=(SafeOpen&&) noexcept;
  ~SafeOpen();

  /// The names of the tensors, in the order of the header.
  std::vector<std::string> keys() const;
  bool contains(std::string_view name) const;
  const Metadata& metadata() const;
  // Each throws CheckpointError, naming what there is, when the file has no such tensor.
  at::Tensor get_tensor(std::string_view name) const;
  const std::vector<std::int64_t>& shape(std::string_view name) const;
  at::ScalarType dtype(std::string_view name) const;
  std::uint64_t nbytes(std::string_view name) const;  ///< of its data in the file

 private:
  class File;
  std::unique_ptr<const File> file_;
};

}  // namespace lockstep::safetensors
