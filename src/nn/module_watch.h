// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include "device/module_snapshot.h"

namespace lockstep::nn {

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
  explicit ModuleWatch(const torch::nn::Module& module);

  // `types`: whether dtypes, devices and strides count. Takes 30 us for 200 parameters
  // whose memory a training step has evicted from the caches (`ddp_overhead --watch`).
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
    const void* meta;  // of autograd, to be fetched early
    at::ScalarType dtype;
    c10::Device device;
    bool requires_grad;
    c10::SmallVector<std::int64_t, 5> sizes;
    c10::SmallVector<std::int64_t, 5> strides;
  };
  static Seen look(const char* kind, std::string name, const at::Tensor& tensor);
  static bool has_same_types(const Seen& seen);
  static bool is_same(const Seen& seen, bool types);
  static std::string difference(const Seen& seen, bool types);
  void compare(const char* kind, const torch::OrderedDict<std::string, at::Tensor>& now, bool types,
               std::vector<ModuleChange>& changes) const;

  const torch::nn::Module* module_;
  device::ModuleSnapshot identities_;
  std::vector<Seen> seen_;  // under all names
};

}  // namespace lockstep::nn
