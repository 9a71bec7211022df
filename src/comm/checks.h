// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/call_record.h>
#include <lockstep/comm/reduce_op.h>

#include "comm/group_state.h"

namespace lockstep::comm {

// Checks of one call's arguments. Each throws ArgumentError naming rank, call, source line and argument.
class Checks {
 public:
  Checks(const GroupState& group, CallKind kind, std::source_location where)
      : group_(group), kind_(kind), where_(where) {}

  // Any dense layout without holes or overlaps.
  void dense(const at::Tensor& tensor, std::string_view name) const;
  void contiguous(const at::Tensor& tensor, std::string_view name) const;
  // size() contiguous tensors.
  void one_per_rank(const std::vector<at::Tensor>& tensors, std::string_view name) const;
  void empty_off_root(const std::vector<at::Tensor>& tensors, std::string_view name,
                      std::string_view root_name, int root) const;
  // Of scatter_object: one a rank on src, none elsewhere.
  void object_count(std::size_t count, std::size_t needed, int src) const;
  void same_as(const at::Tensor& tensor, std::string_view name, const at::Tensor& model,
               std::string_view model_name) const;
  // `output`, one a rank, can take every rank's `input`.
  void gathered(const std::vector<at::Tensor>& output, const at::Tensor& input) const;
  void same_dtype(const at::Tensor& tensor, std::string_view name, const at::Tensor& model,
                  std::string_view model_name) const;
  // `whole` has size() times the elements of `part`.
  void whole_of(const at::Tensor& whole, std::string_view whole_name, const at::Tensor& part,
                std::string_view part_name) const;
  void splits(const std::vector<std::int64_t>& sizes, std::string_view name, const at::Tensor& tensor,
              std::string_view tensor_name) const;
  void one_object_per_rank(std::size_t count) const;
  void rank(int rank, std::string_view name) const;
  void peer(int rank, std::string_view name) const;
  void tag(int tag) const;
  void operation(ReduceOp op, const at::Tensor& tensor) const;

 private:
  void transportable(const at::Tensor& tensor, std::string_view name) const;
  [[noreturn]] void refuse(std::string_view complaint) const;

  const GroupState& group_;
  CallKind kind_;
  std::source_location where_;
};

}  // namespace lockstep::comm
