// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <lockstep/serialize/value.h>

#include "serialize/pickle_reader.h"
#include "serialize/unpickler.h"

namespace lockstep::serialize {

// The calls that create tensors in pickles: PyTorch's `_rebuild_*` functions. Errors are CheckpointErrors.
class TensorCalls {
 public:
  using ValueOf = std::function<Value(pickle::Ref)>;

  // The arguments must outlive the object. `value_of` returns the value of a node.
  TensorCalls(const pickle::Pickle& pickle, StorageSource& storages, ValueOf value_of)
      : pickle_(pickle), storages_(storages), value_of_(std::move(value_of)) {}

  // Whether call() handles this "module name".
  static bool makes_tensor(std::string_view callee);
  // Returns a tensor or a parameter.
  Value call(std::string_view callee, const std::vector<pickle::Ref>& args);
  // Parses a persistent node.
  StorageRecord storage_record(pickle::Ref ref);

 private:
  using Args = std::vector<pickle::Ref>;
  struct LoadedStorage {
    c10::Storage storage;
    at::ScalarType dtype;
  };

  Value value(pickle::Ref ref) const { return value_of_(ref); }
  bool flag(pickle::Ref ref) const { return value(ref).as_bool(); }
  at::ScalarType dtype_arg(pickle::Ref ref) const;
  at::ScalarType storage_dtype(pickle::Ref ref) const;
  LoadedStorage storage(pickle::Ref ref);
  at::Tensor strided(const c10::Storage& storage_of, at::ScalarType dtype, const Args& args) const;
  void set_bits(at::Tensor& tensor, pickle::Ref ref) const;

  Value rebuild_tensor(const Args& args);
  Value rebuild_tensor_v2(const Args& args);
  Value rebuild_tensor_v3(const Args& args);
  Value rebuild_parameter(const Args& args);
  Value parameter_class(const Args& args);
  Value from_type(const Args& args);
  Value sparse(const Args& args);
  Value meta(const Args& args);
  Value of_device(const Args& args);

  const pickle::Pickle& pickle_;
  StorageSource& storages_;
  ValueOf value_of_;
};

}  // namespace lockstep::serialize
