// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "modules/cut.h"

namespace lockstep::tensor_parallel {

class ModuleCheck;
class ParallelParameter;

// An operator that takes a cut parameter, or a view of it.
struct Call {
  const ParallelParameter& parameter;
  const c10::OperatorHandle& op;
  std::string_view name;  // e.g. "aten::linear"
  at::ArrayRef<c10::IValue> arguments;
};

// The operator's result, computed on all ranks; nullopt: the rule is not for this operator.
using Rule = std::function<std::optional<at::Tensor>(const Call& call)>;

// What operators know of a parameter of a module that parallelize_module() changed. Owned by its storage.
class ParallelParameter final : public modules::CutParameter {
 public:
  // `dim`: the dimension of which this rank has a part; nullopt: it is whole, and used with parts of a
  // sequence or by its rules. `sizes`: of the whole parameter. `where`: the line of the plan, which calls and
  // errors of operators have.
  ParallelParameter(std::string name, ProcessGroup group, std::optional<std::int64_t> dim,
                    std::vector<std::int64_t> sizes, std::source_location where);

  bool run(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  void add(Rule rule) { rules_.push_back(std::move(rule)); }
  // Takes the place of an earlier call's. `checks`: whether operators that use this parameter check the
  // module.
  void set_check(std::shared_ptr<ModuleCheck> check, bool checks) {
    check_ = std::move(check);
    checks_ = checks;
  }

  const std::string& name() const { return name_; }
  const ProcessGroup& group() const { return group_; }
  const std::vector<std::int64_t>& sizes() const override { return sizes_; }
  const std::optional<modules::Cut>& cut() const override { return cut_; }
  const std::vector<std::int64_t>& part_sizes() const { return part_sizes_; }

 private:
  bool run_checked(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  bool run_rule(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  // That of another argument, which takes this parameter with it.
  bool run_rule_of_other(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

  std::string name_;
  ProcessGroup group_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> part_sizes_;
  std::optional<modules::Cut> cut_;
  std::source_location where_;
  std::vector<Rule> rules_;
  std::shared_ptr<ModuleCheck> check_;  // may be nullptr
  bool checks_ = false;
};

// That of the tensor, or nullptr.
ParallelParameter* parallel_parameter(const at::Tensor& tensor);

}  // namespace lockstep::tensor_parallel
