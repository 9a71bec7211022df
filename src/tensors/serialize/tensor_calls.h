// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <c10/core/Storage.h>

#include <lockstep/serialize/value.h>

#include "serialize/pickle.h"
#include "serialize/unpickler.h"

namespace lockstep::serialize {

// A view of a storage; `offset`, `sizes` and `strides` count elements. All numbers are checked first. Throws
// CheckpointError, or c10::Error where LibTorch checks, as rebuild_meta() does.
at::Tensor rebuild_strided(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset,
                           const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);
at::Tensor rebuild_meta(at::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                        const std::vector<std::int64_t>& strides, bool requires_grad);

// The calls that create tensors in pickles: PyTorch's `_rebuild_*` functions. Errors are CheckpointErrors.
class TensorCalls {
 public:
  using Args = std::vector<pickle::Ref>;
  using ValueOf = std::function<Value(pickle::Ref)>;

  // The arguments must outlive the object. `value` returns the value of a node.
  TensorCalls(const pickle::Pickle& pickle, const LoadStorage& load_storage, ValueOf value)
      : pickle_(pickle), load_storage_(load_storage), value_(std::move(value)) {}

  // Whether call() handles this "module name".
  static bool makes_tensor(std::string_view callee);
  // Returns a tensor or a parameter.
  Value call(std::string_view callee, const Args& args) const;
  // Parses a persistent node.
  StorageRecord storage_record(pickle::Ref ref) const;

 private:
  bool flag(pickle::Ref ref) const { return value_(ref).as_bool(); }
  at::ScalarType dtype_arg(pickle::Ref ref) const;
  at::ScalarType storage_dtype(pickle::Ref ref) const;
  void set_bits(at::Tensor& tensor, pickle::Ref ref) const;

  template <bool has_dtype>
  Value strided(const Args& args) const;
  Value parameter(const Args& args) const;
  Value from_type(const Args& args) const;
  Value sparse(const Args& args) const;
  Value meta(const Args& args) const;
  Value of_device(const Args& args) const;

  const pickle::Pickle& pickle_;
  const LoadStorage& load_storage_;
  ValueOf value_;
};

}  // namespace lockstep::serialize
