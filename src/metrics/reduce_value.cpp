// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <lockstep/metrics/metrics.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

void check_operation(const ReduceOp& op) {
  if (op != ReduceOp::AVG && op != ReduceOp::SUM)
    throw_error<ArgumentError>("reduce_value() computes means and sums; pass ReduceOp::AVG or ReduceOp::SUM");
}

// 32 bits of FNV-1a, so that the sum over a million ranks is exact in float64.
double hash_of_names(const std::map<std::string, double>& values) {
  std::uint32_t hash = 2166136261U;
  for (const auto& [name, value] : values) {
    for (const char letter : name + '\n') hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  }
  return hash;
}

std::string names_of(const std::map<std::string, double>& values) {
  std::string names;
  for (const auto& [name, value] : values) names += (names.empty() ? "'" : ", '") + name + "'";
  return names;
}

// Numbers travel on a device that the group supports.
at::Tensor reduced_sums(const std::vector<double>& numbers, const ProcessGroup& group) {
  auto sums = at::tensor(numbers, at::kDouble).to(comm::device_for_objects(group));
  group.all_reduce(sums);
  return sums.cpu();
}

}  // namespace

at::Tensor reduce_value(const at::Tensor& value, ReduceOp op,
                        const std::optional<ProcessGroup>& process_group) {
  check_operation(op);
  const bool is_mean = op == ReduceOp::AVG;
  const bool is_exact = at::isIntegralType(value.scalar_type(), /*includeBool=*/true);
  auto result = value.detach().to(is_mean && is_exact ? at::kDouble : value.scalar_type(),
                                  /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  if (const auto group = runtime::group_or_default(process_group)) group->all_reduce(result, op);
  return result;
}

double reduce_value(double value, ReduceOp op, const std::optional<ProcessGroup>& process_group) {
  return reduce_value({{"value", value}}, op, process_group).at("value");
}

std::map<std::string, double> reduce_value(const std::map<std::string, double>& values, ReduceOp op,
                                           const std::optional<ProcessGroup>& process_group) {
  check_operation(op);
  const auto group = runtime::group_or_default(process_group);
  if (!group) return values;
  const double hash = hash_of_names(values);
  std::vector<double> numbers{hash};
  for (const auto& [name, value] : values) numbers.push_back(value);
  const auto sums = reduced_sums(numbers, *group);
  const auto* sum = sums.const_data_ptr<double>();
  if (*sum != hash * group->size())
    throw_error<DesyncError>("reduce_value(): the ranks pass different names; rank {} passes {}",
                             group->rank(), names_of(values));
  auto result = values;
  for (auto& [name, value] : result) value = *++sum / (op == ReduceOp::AVG ? group->size() : 1);
  return result;
}

}  // namespace lockstep
