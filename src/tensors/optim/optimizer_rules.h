// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <lockstep/optim/optimizers.h>

#include "base/throw_error.h"
#include "optim/fields.h"
#include "optim/optimizer_states.h"

namespace lockstep::optim {

// What differs between the optimizers. A specialization has
// - `name`, visit_fields(options, Fields), and check(options, Checks), which refuses invalid values;
// - begin(state, parameter, gradient, options), which fills the state before the first step (optional);
// - update(options, group, parameter, gradient, state), the step of one parameter. Its operators and their
//   order are those of Python's single-tensor implementation, so that the results are equal to the bit;
// - begin_step(defaults, members of the groups) and begin_group(options), called before (optional);
// - complete(defaults), which sets defaults that depend on others (optional);
// - check_parameter(parameter), and `sparse` if it takes sparse gradients (optional).
template <typename Options>
struct Rules;

using NamedTensors = std::map<std::string, at::Tensor>;

template <typename Options>
struct Group {
  const Options& defaults;
  const at::Tensor& first;  // of the parameters with gradients
};

struct NamedOptimizer::Member {
  at::Tensor parameter;
  at::Tensor gradient;
  NamedParamState* state;
};

// The options of Python's optimizers that have no counterpart, as state dicts have them.
inline void python_only(Fields& fields) {
  fields.constant("foreach", None());
  fields.constant("capturable", false);
  fields.constant("differentiable", false);
}

// Refuses values like Python's constructors.
class Checks {
 public:
  explicit Checks(const char* optimizer) : optimizer_(optimizer) {}
  void at_least_zero(const char* name, double value) const { require(value >= 0, name, value, "0 or more"); }
  void share(const char* name, double value) const {
    require(value >= 0 && value < 1, name, value, "at least 0 and below 1");
  }
  void betas(const Betas& betas) const {
    share("the first of betas", std::get<0>(betas));
    share("the second of betas", std::get<1>(betas));
  }
  template <typename T>
  void require(bool valid, const char* name, const T& value, const char* wanted) const {
    if (!valid) throw_error<ArgumentError>("{}: {} must be {}, not {}", optimizer_, name, wanted, value);
  }

 private:
  const char* optimizer_;
};

inline at::ScalarType counter_dtype() {
  return c10::get_default_dtype_as_scalartype() == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor zero_counter() { return at::zeros({}, at::TensorOptions(counter_dtype())); }

// Adds 1 to the counter "step" and returns it.
inline double next_step(NamedParamState& state) { return state.tensors.at("step").add_(1).item<double>(); }

// Of options whose kind NamedOptimizer has checked.
template <typename Options>
const Options& options_as(const torch::optim::OptimizerOptions& options) {
  return static_cast<const GroupOptionsOf<Options>&>(options);
}

template <typename Options>
void GroupOptionsOf<Options>::visit_fields(Fields& fields) {
  Rules<Options>::visit_fields(*this, fields);
}

template <typename Options>
OptimizerOf<Options>::OptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                                  const Options& defaults)
    : NamedOptimizer([&] {
        auto complete = std::make_unique<GroupOptionsOf<Options>>(defaults);
        if constexpr (requires { Rules<Options>::complete(*complete); }) Rules<Options>::complete(*complete);
        return complete;
      }()) {
  begin(param_groups);
}

template <typename Options>
void OptimizerOf<Options>::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<NamedParamState, GroupOptionsOf<Options>>(archive, *this);
}

template <typename Options>
void OptimizerOf<Options>::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<NamedParamState, GroupOptionsOf<Options>>(archive, *this);
}

template <typename Options>
const char* OptimizerOf<Options>::name() const {
  return Rules<Options>::name;
}

template <typename Options>
bool OptimizerOf<Options>::takes_sparse() const {
  return requires { Rules<Options>::sparse; };
}

template <typename Options>
std::unique_ptr<NamedOptions> OptimizerOf<Options>::fresh_options() const {
  return std::make_unique<GroupOptionsOf<Options>>();
}

template <typename Options>
void OptimizerOf<Options>::check_options(const torch::optim::OptimizerOptions& options) const {
  Rules<Options>::check(options_as<Options>(options), Checks(name()));
}

template <typename Options>
void OptimizerOf<Options>::check_parameter(const at::Tensor& parameter) const {
  if constexpr (requires { Rules<Options>::needs_whole_parameters; }) {
    if (rows_of(parameter) != nullptr) {
      throw_error<ArgumentError>(
          "{}: its steps need norms of whole parameters, but fully_shard() gives each rank rows; use an "
          "optimizer of single elements, such as AdamW, or DistributedDataParallel",
          Rules<Options>::name);
    }
  }
  if constexpr (requires { Rules<Options>::check_parameter(parameter); })
    Rules<Options>::check_parameter(parameter);
}

template <typename Options>
void OptimizerOf<Options>::begin_state(const Member& member,
                                       const torch::optim::OptimizerOptions& options) const {
  auto& tensors = member.state->tensors;
  if constexpr (requires {
                  Rules<Options>::begin(tensors, member.parameter, member.gradient,
                                        options_as<Options>(options));
                }) {
    Rules<Options>::begin(tensors, member.parameter, member.gradient, options_as<Options>(options));
  }
}

template <typename Options>
void OptimizerOf<Options>::step_groups(std::vector<std::vector<Member>>& groups) {
  const auto& own_defaults = options_as<Options>(defaults());
  if constexpr (requires { Rules<Options>::begin_step(own_defaults, groups); })
    Rules<Options>::begin_step(own_defaults, groups);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Options& options = static_cast<GroupOptionsOf<Options>&>(param_groups()[g].options());
    if constexpr (requires { Rules<Options>::begin_group(options); }) Rules<Options>::begin_group(options);
    for (auto& [parameter, gradient, state] : groups[g]) {
      if constexpr (requires { options.maximize; }) {
        if (options.maximize) gradient = gradient.neg();
      }
      const Group<Options> group{own_defaults, groups[g].front().parameter};
      Rules<Options>::update(options, group, parameter, gradient, *state);
    }
  }
}

}  // namespace lockstep::optim
