// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "modules/cut.h"

namespace lockstep::fsdp {

// A parameter of a module, cut along a dimension, whose indices are called rows: rank r has rows r * chunk
// and on, at most `chunk`.
struct ShardedParameter {
  std::string name;
  std::vector<std::int64_t> full_sizes;  // before any rank took a part
  std::vector<modules::Cut> cuts;        // from these to this rank's rows
  std::vector<std::int64_t> sizes;       // of the module's tensor
  bool trained = false;
  std::int64_t dim = 0;     // of the rows
  std::int64_t row = 0;     // elements of a row
  std::int64_t chunk = 0;   // rows of a rank, with padding
  std::int64_t offset = 0;  // of this parameter in a rank's part of the group's flat layout
  // The module's tensor. Its storage owns the group, so the group does not own it.
  c10::weak_intrusive_ptr<c10::TensorImpl> whole;
  at::Tensor initial = {};  // this rank's rows before there is memory for them
  at::Tensor shard = {};    // this rank's rows: what the optimizer steps

  std::int64_t all_rows() const { return sizes[static_cast<std::size_t>(dim)]; }
  std::int64_t first_row(int rank) const { return std::min(rank * chunk, all_rows()); }
  std::int64_t rows(int rank) const { return first_row(rank + 1) - first_row(rank); }
  std::int64_t numel() const { return all_rows() * row; }
  std::int64_t padded_shard_numel() const { return chunk * row; }
  std::vector<std::int64_t> shard_sizes(int rank) const {
    auto shape = sizes;
    shape[static_cast<std::size_t>(dim)] = rows(rank);
    return shape;
  }
  // The view of a rank's rows in a tensor of the parameter's shape.
  at::Tensor rows_in(const at::Tensor& all, int rank) const {
    return all.narrow(dim, first_row(rank), rows(rank));
  }
  // The module's tensor; undefined when the module does not exist any more.
  at::Tensor lock_whole() const {
    auto impl = whole.lock();
    return impl ? at::Tensor(std::move(impl)) : at::Tensor();
  }
};

// The flat layout of a group is a row for each rank, with the rank's rows of all parameters, padded.
// `flat`: [ranks, elements of a rank]; `whole`: of the parameter's shape; `offset`: in a rank's row;
// `first_rank`: that of the first row.
void pack(const at::Tensor& whole, const ShardedParameter& parameter, const at::Tensor& flat,
          std::int64_t offset, int first_rank = 0);
void unpack(const at::Tensor& flat, const ShardedParameter& parameter, const at::Tensor& whole);
// `row`: that of one rank.
void unpack_row(const at::Tensor& row, const ShardedParameter& parameter, const at::Tensor& whole, int rank);

}  // namespace lockstep::fsdp
