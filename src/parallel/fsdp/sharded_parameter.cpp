// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/sharded_parameter.h"

namespace lockstep::fsdp {
namespace {

at::Tensor without_padding(const at::Tensor& part, const at::Tensor& rows) {
  return part.narrow(0, 0, rows.numel()).view(rows.sizes());
}

}  // namespace

void pack(const at::Tensor& whole, const ShardedParameter& parameter, const at::Tensor& flat,
          std::int64_t offset, int first_rank) {
  for (int row = 0; row < flat.size(0); ++row) {
    const auto part = flat.select(0, row).narrow(0, offset, parameter.padded_shard_numel());
    const auto rows = parameter.rows_in(whole, first_rank + row);
    without_padding(part, rows).copy_(rows);
    if (rows.numel() < part.numel()) part.narrow(0, rows.numel(), part.numel() - rows.numel()).zero_();
  }
}

void unpack(const at::Tensor& flat, const ShardedParameter& parameter, const at::Tensor& whole) {
  for (int rank = 0; rank < flat.size(0); ++rank) unpack_row(flat.select(0, rank), parameter, whole, rank);
}

void unpack_row(const at::Tensor& row, const ShardedParameter& parameter, const at::Tensor& whole, int rank) {
  const auto rows = parameter.rows_in(whole, rank);
  rows.copy_(without_padding(row.narrow(0, parameter.offset, parameter.padded_shard_numel()), rows));
}

}  // namespace lockstep::fsdp
