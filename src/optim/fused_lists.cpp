// SPDX-License-Identifier: BSD-3-Clause
#include "optim/fused_lists.h"

#include <ATen/ops/empty_like.h>
#include <fmt/ranges.h>

#include "serialize/errors.h"

namespace lockstep::optim {
namespace {

std::string tensor_text(const at::Tensor& tensor) {
  return fmt::format("{}[{}] on {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                     tensor.device().str());
}

// Strides of dimensions of size 1 are irrelevant.
bool lies_alike(const at::Tensor& left, const at::Tensor& right) {
  for (std::int64_t d = 0; d < left.dim(); ++d) {
    if (left.size(d) != 1 && left.stride(d) != right.stride(d)) return false;
  }
  return true;
}

}  // namespace

std::string ParameterName::text() const {
  return fmt::format("{}: parameter {} of group {}, {},", optimizer, index, group, tensor_text(parameter));
}

void check_parameter(const ParameterName& name) {
  if (!name.parameter.is_floating_point()) {
    throw_error<ArgumentError>("{} is not a floating-point tensor; use the optimizer of torch::optim for it",
                               name.text());
  }
  if (name.parameter.layout() == at::kStrided && name.parameter.is_non_overlapping_and_dense()) return;
  throw_error<ArgumentError>(
      "{} has gaps or overlaps in memory, which the fused kernels do not see; make "
      "it a tensor of its own by clone(), or use the optimizer of torch::optim",
      name.text());
}

at::Tensor laid_out(const at::Tensor& tensor, const ParameterName& name, const char* what) {
  const auto& parameter = name.parameter;
  if (!tensor.defined()) {
    throw_error<ArgumentError>(
        "{} has a state without {}; load the state dict of a fused optimizer or of "
        "the same one without fused",
        name.text(), what);
  }
  if (tensor.layout() != at::kStrided) {
    throw_error<ArgumentError>(
        "{} has a sparse {}; fused optimizers take dense ones: use the optimizer of "
        "torch::optim, or make the layer with sparse(false)",
        name.text(), what);
  }
  if (tensor.device() != parameter.device() || tensor.scalar_type() != parameter.scalar_type() ||
      tensor.sizes() != parameter.sizes()) {
    throw_error<ArgumentError>(
        "{} has the {} {}; when a parameter has become another kind of tensor, make "
        "a new optimizer and load the old one's state_dict() into it",
        name.text(), what, tensor_text(tensor));
  }
  if (lies_alike(tensor, parameter)) return tensor;
  return at::empty_like(parameter).copy_(tensor);
}

void GradientList::add(const ParameterName& name) {
  const auto& gradient = name.parameter.grad();
  list_.push_back(laid_out(gradient, name, "gradient"));
  if (!list_.back().is_same(gradient)) copied_.emplace_back(gradient, list_.back());
}

void GradientList::copy_back() const {
  for (const auto& [own, copy] : copied_) own.copy_(copy);
}

std::optional<at::Tensor> on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return std::nullopt;
  // A non-blocking copy to the CPU would not wait for the values.
  return tensor.to(tensor.options().device(device), /*non_blocking=*/!device.is_cpu());
}

std::optional<at::Tensor> rate_on(const at::Tensor& rate, c10::Device device) {
  if (rate.defined() && rate.is_cpu()) return rate;
  return on_device(rate, device);
}

}  // namespace lockstep::optim
