// SPDX-License-Identifier: BSD-3-Clause
#include "comm/call_form.h"

namespace lockstep::comm {
namespace {

constexpr std::uint64_t kOddNumber = 0x9E37'79B9'7F4A'7C15U;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * kOddNumber;
  return hash ^ hash >> 29U;
}

}  // namespace

bool is_uneven(CallKind kind) {
  return kind == CallKind::all_gather || kind == CallKind::gather || kind == CallKind::all_to_all ||
         kind == CallKind::all_to_all_single;
}

std::uint64_t layout_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.is_contiguous()) return 0;
  std::uint64_t layout = 1;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    // The stride of a dimension of one element says nothing.
    if (tensor.size(dim) > 1) layout = mixed(layout, static_cast<std::uint64_t>(tensor.stride(dim)));
  }
  return layout;
}

std::uint64_t form_of(CallKind kind, c10::ScalarType dtype, c10::IntArrayRef shape, std::uint64_t layout) {
  auto form = mixed(static_cast<std::uint64_t>(kind) + 1, static_cast<std::uint64_t>(dtype) + 1);
  if (is_uneven(kind)) return form;
  for (const auto size : shape) form = mixed(form, static_cast<std::uint64_t>(size) + 1);
  return mixed(form, layout);
}

}  // namespace lockstep::comm
