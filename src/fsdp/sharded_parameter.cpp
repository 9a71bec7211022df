// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/sharded_parameter.h"

namespace lockstep::fsdp {
namespace {

// Calls `visit(part of rank r in the layout, rows of rank r)`, both one-dimensional.
template <class Visit>
void for_each_rank(const at::Tensor& flat, std::int64_t offset, const ShardedParameter& parameter,
                   const at::Tensor& whole, const Visit& visit) {
  const auto rows = whole.view({-1});
  for (int rank = 0; rank < flat.size(0); ++rank) {
    const auto part = flat.select(0, rank).narrow(0, offset, parameter.padded_shard_numel());
    visit(part,
          rows.narrow(0, parameter.first_row(rank) * parameter.row, parameter.rows(rank) * parameter.row));
  }
}

}  // namespace

void pack(const at::Tensor& whole, const ShardedParameter& parameter, const at::Tensor& flat,
          std::int64_t offset) {
  for_each_rank(flat, offset, parameter, whole, [](const at::Tensor& part, const at::Tensor& rows) {
    part.narrow(0, 0, rows.numel()).copy_(rows);
    if (rows.numel() < part.numel()) part.narrow(0, rows.numel(), part.numel() - rows.numel()).zero_();
  });
}

void unpack(const at::Tensor& flat, const ShardedParameter& parameter, const at::Tensor& whole) {
  for_each_rank(flat, parameter.offset, parameter, whole, [](const at::Tensor& part, const at::Tensor& rows) {
    rows.copy_(part.narrow(0, 0, rows.numel()));
  });
}

}  // namespace lockstep::fsdp
