// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

namespace lockstep::ckpt {

// A value in a checkpoint that contains no others: a tensor, a number, an empty dict.
struct Leaf {
  std::string path;  // the keys to it, joined with dots; items of lists by number
  const Value* value = nullptr;

  // nullptr unless it is a tensor or a parameter.
  const at::Tensor* tensor() const;
};

// All leaves in the order of the checkpoint, which must outlive them.
std::vector<Leaf> leaves_of(const Value& value);

// The size in bytes of a tensor's data, sparse or not.
std::uint64_t bytes_of(const at::Tensor& tensor);
std::uint64_t total_bytes(const std::vector<Leaf>& leaves);

// "float32"
std::string dtype_name(at::ScalarType dtype);
// "[2, 3]"
std::string shape_text(const at::Tensor& tensor);
// A path with control characters escaped.
std::string printable(const std::string& path);

// As in torch.allclose: numbers are equal if |a - b| <= atol + rtol * |b|.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

struct TensorDifference {
  std::int64_t count = 0;  // of elements that are not equal enough
  double largest = 0;      // of their absolute differences; infinite when only one is NaN
};

// Compares two tensors of one shape and dtype. NaN equals NaN. Needs little additional memory. Calls
// `advance` with the bytes of each piece that it has compared.
TensorDifference difference(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance,
                            const std::function<void(std::uint64_t)>& advance);

}  // namespace lockstep::ckpt
