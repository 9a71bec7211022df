// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/sharded_parameter.h"

namespace lockstep::fsdp {
namespace {

// Calls `visit(part of rank r in the layout, rows of rank r)`; the part is one-dimensional.
template <class Visit>
void for_each_rank(const at::Tensor& flat, std::int64_t offset, int first_rank,
                   const ShardedParameter& parameter, const at::Tensor& whole, const Visit& visit) {
  for (int row = 0; row < flat.size(0); ++row) {
    const auto rows = parameter.rows_in(whole, first_rank + row);
    visit(flat.select(0, row).narrow(0, offset, parameter.padded_shard_numel()), rows);
  }
}

at::Tensor without_padding(const at::Tensor& part, const at::Tensor& rows) {
  return part.narrow(0, 0, rows.numel()).view(rows.sizes());
}

}  // namespace

void pack(const at::Tensor& whole, const ShardedParameter& parameter, const at::Tensor& flat,
          std::int64_t offset, int first_rank) {
  for_each_rank(flat, offset, first_rank, parameter, whole,
                [](const at::Tensor& part, const at::Tensor& rows) {
                  without_padding(part, rows).copy_(rows);
                  if (rows.numel() < part.numel())
                    part.narrow(0, rows.numel(), part.numel() - rows.numel()).zero_();
                });
}

void unpack(const at::Tensor& flat, const ShardedParameter& parameter, const at::Tensor& whole) {
  for_each_rank(
      flat, parameter.offset, 0, parameter, whole,
      [](const at::Tensor& part, const at::Tensor& rows) { rows.copy_(without_padding(part, rows)); });
}

}  // namespace lockstep::fsdp
