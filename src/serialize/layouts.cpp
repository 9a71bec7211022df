// SPDX-License-Identifier: BSD-3-Clause
#include "serialize/layouts.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::serialize {
namespace {

struct NamedLayout {
  at::Layout layout;
  std::string_view name;
};

constexpr std::array kLayouts = {
    NamedLayout{at::Layout::Strided, "torch.strided"},
    NamedLayout{at::Layout::Sparse, "torch.sparse_coo"},
    NamedLayout{at::Layout::SparseCsr, "torch.sparse_csr"},
    NamedLayout{at::Layout::SparseCsc, "torch.sparse_csc"},
    NamedLayout{at::Layout::SparseBsr, "torch.sparse_bsr"},
    NamedLayout{at::Layout::SparseBsc, "torch.sparse_bsc"},
    NamedLayout{at::Layout::Mkldnn, "torch._mkldnn"},
};

}  // namespace

at::Layout layout_named(std::string_view name) {
  const auto found = std::ranges::find(kLayouts, name, &NamedLayout::name);
  if (found != kLayouts.end()) return found->layout;
  throw CheckpointError(fmt::format("the checkpoint names an unknown layout: {}", name));
}

std::string_view layout_name(at::Layout layout) {
  const auto found = std::ranges::find(kLayouts, layout, &NamedLayout::layout);
  if (found != kLayouts.end()) return found->name;
  throw CheckpointError(fmt::format("layout {} cannot be saved", static_cast<int>(layout)));
}

}  // namespace lockstep::serialize
