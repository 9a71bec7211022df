// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// A data set of an HDF5 file. While it exists, other threads wait in the constructor: libhdf5 may not be
// thread-safe. Errors are DataErrors that name file and data set.
class Hdf5DataSet {
 public:
  // Also throws where Lockstep was built without LOCKSTEP_WITH_HDF5.
  Hdf5DataSet(const std::filesystem::path& file, std::string name);
  ~Hdf5DataSet();
  Hdf5DataSet(const Hdf5DataSet&) = delete;
  Hdf5DataSet& operator=(const Hdf5DataSet&) = delete;

  const std::vector<std::int64_t>& shape() const { return shape_; }
  // The first sizes[d] values of each dimension d as kFloat or kLong, from 32-bit floating-point numbers or
  // integers. Allocates no more than the file can hold in compressed form.
  at::Tensor read(at::ScalarType dtype, at::IntArrayRef sizes) const;

 private:
  struct Open;

  std::unique_ptr<const Open> open_;
  std::vector<std::int64_t> shape_{};
};

}  // namespace lockstep::data
