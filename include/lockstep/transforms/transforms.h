// SPDX-License-Identifier: BSD-3-Clause
#pragma once
#include <functional>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
namespace lockstep::transforms {
// stand-in
class Transform {
 public:
  template <typename F>
  Transform(F f) {
    if constexpr (std::is_invocable_v<const F&, const at::Tensor&, const std::optional<at::Generator>&>) {
      f_ = f;
    } else {
      f_ = [f](const at::Tensor& x, const std::optional<at::Generator>&) { return f(x); };
    }
  }
  at::Tensor operator()(const at::Tensor& x, const std::optional<at::Generator>& g = {}) const { return f_(x, g); }

 private:
  std::function<at::Tensor(const at::Tensor&, const std::optional<at::Generator>&)> f_;
};
}  // namespace lockstep::transforms
