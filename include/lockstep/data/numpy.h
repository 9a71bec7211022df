// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// The array of a .npy file, of dtype bool, an integer, float16 to float64 or complex, in C or Fortran order.
/// The tensor's memory is the file's pages, read on first access and copied on write; values that are not
/// little-endian are copied. The file must not be truncated while the tensor exists. Throws DataError naming
/// the file and the problem: missing, cut short, damaged, another dtype. numpy: `np.load(file,
/// mmap_mode="c")`.
at::Tensor load_numpy(const std::filesystem::path& file);

/// The arrays of an .npz file by name, as numpy.savez or savez_compressed wrote them. An array is mapped like
/// that of load_numpy() where the file stores it uncompressed and aligned; otherwise it is a copy with a
/// verified checksum. Throws DataError. numpy: `np.load(file)`.
std::map<std::string, at::Tensor> load_npz(const std::filesystem::path& file);

/// The names of the two arrays in an .npz file.
struct NpzNames {
  std::string data;
  std::string target;
};

/// Samples [n, ...] and targets [n, ...] in NumPy files. Batches have the arrays' dtypes.
class NumpyDataset : public TensorDataset {
 public:
  /// Two .npy files. Throws DataError as load_numpy(), and ArgumentError when the arrays differ in their
  /// first dimension.
  NumpyDataset(const std::filesystem::path& data, const std::filesystem::path& target,
               SampleTransforms transforms = {})
      : TensorDataset(load_numpy(data), load_numpy(target), std::move(transforms)) {}
  /// One .npz file: `NumpyDataset("digits.npz", {.data = "x_train", .target = "y_train"})`. Reads only these
  /// two arrays. Throws also DataError that lists the arrays of the file when one is missing.
  NumpyDataset(const std::filesystem::path& npz, const NpzNames& names,
               const SampleTransforms& transforms = {});
};

}  // namespace lockstep::data
