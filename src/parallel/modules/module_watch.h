// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include "device/cold_lines.h"
#include "device/module_snapshot.h"

namespace lockstep::modules {

// What has become of a parameter or buffer.
struct ModuleChange {
  std::string name;
  std::string text;  // "parameter 0.weight: requires_grad was false, is true"
  // Whether the tensor is still the same object with the same shape, or is a buffer.
  bool can_be_followed = true;
  bool is_conversion = false;  // of its dtype, device or strides
};

// Whether a module still has the parameters and buffers that it had, with the same types, devices, strides
// and requires_grad. The module must outlive it.
class ModuleWatch {
 public:
  // The nodes that accumulate the gradients of parameters.
  using Accumulators = std::unordered_map<const c10::TensorImpl*, const void*>;

  // It counts as a change if another node accumulates the gradient of one of these parameters, as after a
  // conversion and its reverse. Something must hold the nodes, as hooks do.
  explicit ModuleWatch(const torch::nn::Module& module, const Accumulators& accumulators = {});

  // `types`: whether dtypes, devices and strides count. Reads about 16 cache lines for a layer with two
  // parameters; `ddp_overhead --watch` measures the time inside a training step.
  bool is_unchanged(bool types) const;

  // The changes, parameters first. Not for every step.
  std::vector<ModuleChange> changes(bool types) const;

  // Zeros as this tensor was, which is among those seen.
  at::Tensor like_before(const at::Tensor& tensor) const;

 private:
  struct Seen {
    std::string name;
    const char* kind;
    at::Tensor tensor;
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    c10::SmallVector<std::int64_t, 5> sizes;
    c10::SmallVector<std::int64_t, 5> strides;
  };
  void pack(const Seen& seen, const Accumulators& accumulators);
  static Seen look(const char* kind, std::string name, const at::Tensor& tensor);
  static bool has_same_types(const Seen& seen);
  static std::string difference(const Seen& seen, bool types);
  void compare(const char* kind, const torch::OrderedDict<std::string, at::Tensor>& now, bool types,
               std::vector<ModuleChange>& changes) const;

  // What each step compares, packed.
  struct Compared {
    const c10::TensorImpl* tensor;
    const void* accumulator;  // nullptr: any
    std::uint32_t shape;      // where in shapes_ its sizes lie, then its strides
    std::uint32_t dim;
    caffe2::TypeMeta dtype;
    c10::Device device;
    bool requires_grad;
  };
  bool is_same(const Compared& compared, bool types) const;

  const torch::nn::Module* module_;
  device::ModuleSnapshot identities_;
  std::vector<Seen> seen_;          // under all names
  std::vector<Compared> compared_;  // of seen_
  std::vector<std::int64_t> shapes_;
  device::ColdLines lines_;  // a group for each of compared_
};

}  // namespace lockstep::modules
