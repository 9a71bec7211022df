// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

// Identifies a parameter in messages: "FusedAdam: parameter 3 of group 0, Float[10,5] on cpu,".
struct ParameterName {
  const char* optimizer;
  std::size_t group;
  std::size_t index;
  const at::Tensor& parameter;
  std::string text() const;
};

// Throws ArgumentError unless the kernels support the parameter: floating-point and dense in memory.
void check_parameter(const ParameterName& name);

// Returns `tensor` or a copy in the memory layout of the parameter. Throws ArgumentError for a sparse tensor,
// or another shape, dtype or device. `what`: such as "gradient".
at::Tensor laid_out(const at::Tensor& tensor, const ParameterName& name, const char* what);

// The tensors of the kernel calls, one call per device and dtype. Lists: a struct of vectors.
template <typename Lists>
class CallsOf {
 public:
  Lists& at(const at::Tensor& parameter, bool first = false) {
    for (auto& call : calls_) {
      if (call.device == parameter.device() && call.dtype == parameter.scalar_type() && call.first == first) {
        return call.lists;
      }
    }
    return calls_.emplace_back(Call{parameter.device(), parameter.scalar_type(), first, {}}).lists;
  }

  struct Call {
    c10::Device device;
    at::ScalarType dtype;
    bool first;  // whether the step is the first of these parameters, where that makes a difference
    Lists lists;
  };
  std::vector<Call>& all() { return calls_; }

 private:
  std::vector<Call> calls_;
};

// Gradients in the layout that the kernels need. copy_back() makes their unscaling visible in the parameters'
// own.
class GradientList {
 public:
  void add(const ParameterName& name);
  at::TensorList list() const { return list_; }
  // After the kernel has divided them.
  void copy_back() const;

 private:
  std::vector<at::Tensor> list_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;  // the parameter's own, the one in the list
};

// `tensor` on that device, or nullopt if undefined.
std::optional<at::Tensor> on_device(const at::Tensor& tensor, c10::Device device);
// Like on_device(), but a learning rate on the CPU stays there: GPU kernels read it directly.
std::optional<at::Tensor> rate_on(const at::Tensor& rate, c10::Device device);

}  // namespace lockstep::optim
