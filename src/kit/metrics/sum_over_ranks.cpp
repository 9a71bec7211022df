// SPDX-License-Identifier: BSD-3-Clause
#include "metrics/sum_over_ranks.h"

#include <cstring>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <lockstep/metrics/metrics.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

void check_operation(const ReduceOp& op) {
  if (op != ReduceOp::AVG && op != ReduceOp::SUM)
    throw_error<ArgumentError>("reduce_value() computes means and sums; pass ReduceOp::AVG or ReduceOp::SUM");
}

// The names, for the message, and the numbers of one rank.
std::string to_bytes(const std::map<std::string, double>& values) {
  std::string names, numbers;
  for (const auto& [name, value] : values) {
    names += (names.empty() ? "'" : ", '") + name + "'";
    numbers.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return names + '\0' + numbers;
}

}  // namespace

at::Tensor reduce_value(const at::Tensor& value, ReduceOp op,
                        const std::optional<ProcessGroup>& process_group, std::source_location where) {
  const CallerPlace place(where);
  check_operation(op);
  const bool is_mean = op == ReduceOp::AVG;
  const bool is_exact = at::isIntegralType(value.scalar_type(), /*includeBool=*/true);
  const auto of_sum = value.scalar_type() == at::kBool ? at::kLong : value.scalar_type();
  auto result = value.detach().to(is_mean && is_exact ? at::kDouble : of_sum,
                                  /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  if (const auto group = runtime::group_or_default(process_group, "reduce_value()"))
    group->all_reduce(result, op, where);
  return result;
}

double reduce_value(double value, ReduceOp op, const std::optional<ProcessGroup>& process_group,
                    std::source_location where) {
  const comm::CallSite site(where);
  check_operation(op);
  const auto group = runtime::group_or_default(process_group, "reduce_value()");
  const auto sum = metrics::sum_over_ranks({value}, group).front();
  return op == ReduceOp::AVG && group ? sum / group->size() : sum;
}

// Ranks with other names have another number of numbers, which not every backend notices in an all-reduce.
std::map<std::string, double> reduce_value(const std::map<std::string, double>& values, ReduceOp op,
                                           const std::optional<ProcessGroup>& process_group,
                                           std::source_location where) {
  const CallerPlace place(where);
  check_operation(op);
  const auto group = runtime::group_or_default(process_group, "reduce_value()");
  if (!group) return values;
  const auto own = to_bytes(values);
  const auto names = own.substr(0, own.find('\0'));
  auto result = values;
  for (auto& [name, value] : result) value = 0;
  const auto all = group->all_gather_object(own, where);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto its_names = all[rank].substr(0, all[rank].find('\0'));
    if (its_names != names)
      throw_error<DesyncError>(comm::about(*group, {static_cast<int>(rank)}),
                               "reduce_value(): rank {} passes the names {} and rank {} passes {}",
                               group->rank(), names, rank, its_names);
    const auto* number = all[rank].data() + names.size() + 1;
    for (auto& [name, sum] : result) {
      double value = 0;
      std::memcpy(&value, number, sizeof value);
      sum += value;
      number += sizeof value;
    }
  }
  if (op == ReduceOp::AVG)
    for (auto& [name, sum] : result) sum /= group->size();
  return result;
}

}  // namespace lockstep

namespace lockstep::metrics {

std::vector<double> sum_over_ranks(const std::vector<double>& numbers,
                                   const std::optional<ProcessGroup>& group) {
  if (!group || group->size() == 1) return numbers;
  auto sums = at::tensor(numbers, at::kDouble).to(comm::device_for_objects(*group));
  group->all_reduce(sums);
  sums = sums.cpu();
  return {sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()};
}

Sums::Sums(std::int64_t size, at::ScalarType dtype) : sums_(at::zeros({size}, dtype)) {}

void Sums::reset() { sums_ = at::zeros_like(sums_); }

void Sums::add(const at::Tensor& part) {
  if (sums_.device() != part.device()) sums_ = sums_.to(part.device());
  sums_ = sums_ + part.detach();  // copies of a metric share the former tensor
}

at::Tensor Sums::total(const std::optional<ProcessGroup>& process_group, std::source_location where) const {
  const CallerPlace place(where);
  const auto group = runtime::group_or_default(process_group, "metric");
  if (!group) return local();
  auto sums = sums_.to(comm::device_for_objects(*group), sums_.scalar_type(), /*non_blocking=*/false,
                       /*copy=*/true);
  const comm::CallSite site(where, "sums of a metric");
  group->all_reduce(sums);
  return sums.cpu();
}

Dict Sums::state_dict(const std::optional<ProcessGroup>& process_group, std::source_location where) const {
  return {{"sums", total(process_group, where)}};
}

void Sums::check(const at::Tensor& saved) const {
  if (saved.sizes() == sums_.sizes() && saved.scalar_type() == sums_.scalar_type()) return;
  throw_error<CheckpointError>(
      "metric: 'sums' has {} elements of {} instead of {} of {}; it is the state of another metric",
      saved.numel(), c10::toString(saved.scalar_type()), sums_.numel(), c10::toString(sums_.scalar_type()));
}

Dict Sums::own_state_dict() const { return {{"sums", sums_}}; }

void Sums::load_own_state_dict(const Dict& state_dict) {
  const auto& sums = state_dict.at("sums").as_tensor();
  check(sums);
  reset();
  sums_.copy_(sums);
}

void Sums::load_state_dict(const Dict& state_dict, const std::optional<ProcessGroup>& process_group,
                           std::source_location where) {
  const CallerPlace place(where);
  const auto& sums = state_dict.at("sums").as_tensor();
  check(sums);
  const auto group = runtime::group_or_default(process_group, "metric");
  reset();
  if (!group || group->rank() == 0) sums_.copy_(sums);
}

}  // namespace lockstep::metrics
