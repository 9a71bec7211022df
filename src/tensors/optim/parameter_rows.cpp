// SPDX-License-Identifier: BSD-3-Clause
#include "optim/parameter_rows.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::optim {
namespace {

// A place in the tensor's autograd metadata. Autograd accumulates no gradient into rows, so it never runs.
struct RowsNote final : torch::autograd::PostAccumulateGradHook {
  explicit RowsNote(ParameterRows noted) : rows(std::move(noted)) {}
  void operator()(const at::Tensor& /*tensor*/) override {}
  ParameterRows rows;
};

}  // namespace

at::Tensor narrow_to_part(const at::Tensor& whole, at::IntArrayRef offsets, at::IntArrayRef sizes) {
  auto part = whole;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    part = part.narrow(static_cast<std::int64_t>(dim), offsets[dim], sizes[dim]);
  return part;
}

void note_rows(const at::Tensor& parameter, ParameterRows rows) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<RowsNote>(std::move(rows)));
}

const ParameterRows* rows_of(const at::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  const auto* const note =
      dynamic_cast<const RowsNote*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return note == nullptr ? nullptr : &note->rows;
}

}  // namespace lockstep::optim
