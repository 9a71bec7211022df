// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace lockstep::device {

// Which tensors a module had: notices that another one has taken a parameter's place, and what was added or
// removed since. Compares identities only, and keeps no values alive.
class ModuleSnapshot {
 public:
  enum class Content { parameters, parameters_and_buffers };

  explicit ModuleSnapshot(const torch::nn::Module& module, Content content = Content::parameters);

  // Also false for other submodules. A few nanoseconds for each tensor and module.
  bool matches(const torch::nn::Module& module) const;
  // What has become of the parameters, for a message: "parameter 0.weight has been replaced by another
  // tensor". Empty: they are the same.
  std::string difference(const torch::nn::Module& module) const;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;
  struct Named {
    std::string name;
    WeakTensor tensor;  // so that no other tensor gets the address
  };
  // A layer of LibTorch computes with its member, whatever is registered.
  struct Member {
    std::string name;
    const at::Tensor* tensor;  // lives as long as its layer
    const void* expected;
  };

  Content content_;
  std::vector<const void*> objects_;  // modules and tensors in the order of a walk
  std::vector<Named> parameters_;
  std::vector<WeakTensor> buffers_;
  std::vector<Member> members_;
};

}  // namespace lockstep::device
