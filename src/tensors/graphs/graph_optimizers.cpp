// SPDX-License-Identifier: BSD-3-Clause
#include "graphs/graph_optimizers.h"

#include <algorithm>
#include <optional>
#include <typeinfo>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused.h>

#include "base/throw_error.h"
#include "optim/optimizer_kind.h"
#include "optim/optimizer_states.h"

namespace lockstep::graphs {
namespace {

using namespace torch::optim;

constexpr const char* kRemedy =
    "Remove its step() from the captured step and call it after the GraphedStep, which leaves the gradients "
    "in place";

// Excludes derived classes, whose step() is unknown.
template <typename Kind>
bool is_exactly(const Optimizer& optimizer) {
  return typeid(optimizer) == typeid(Kind);
}

std::string reason_not_capturable(const Optimizer& optimizer) {
  if (is_exactly<SGD>(optimizer) || is_exactly<RMSprop>(optimizer)) return "";
  if (is_exactly<optim::FusedSGD>(optimizer) || is_exactly<optim::FusedAdam>(optimizer) ||
      is_exactly<optim::FusedAdamW>(optimizer)) {
    return "";
  }
  if (is_exactly<Adagrad>(optimizer)) {
    for (const auto& group : optimizer.param_groups()) {
      if (static_cast<const AdagradOptions&>(group.options()).lr_decay() != 0) {
        return "Adagrad with lr_decay computes its learning rate on the host from the number of the step";
      }
    }
    return "";
  }
  if (is_exactly<Adam>(optimizer) || is_exactly<AdamW>(optimizer)) {
    return "LibTorch's Adam and AdamW compute their bias correction on the host from the number of the step "
           "(lockstep::optim::FusedAdam and FusedAdamW do not)";
  }
  if (is_exactly<LBFGS>(optimizer)) return "LBFGS decides on the host how often it calls its closure";
  return fmt::format("the optimizer class {} is unknown", typeid(optimizer).name());
}

// nullopt when a group has other options. A graph reads a learning rate in a tensor, so there only the
// identity of the tensor counts.
template <typename Options>
std::optional<bool> compare_options(const OptimizerOptions& left, const OptimizerOptions& right) {
  const auto* first = dynamic_cast<const Options*>(&left);
  const auto* second = dynamic_cast<const Options*>(&right);
  if (first == nullptr || second == nullptr) return std::nullopt;
  auto adjusted = *first;
  if constexpr (requires { first->lr_tensor(); }) {
    if (first->lr_tensor().defined()) adjusted.lr() = second->lr();
  }
  return adjusted == *second;
}

template <typename... Options>
bool same_group(const OptimizerOptions& left, const OptimizerOptions& right) {
  std::optional<bool> same;
  (void)((same = compare_options<Options>(left, right)) || ...);
  return same.value_or(false);
}

optim::StateParts parts_of(const optim::OptimizerKind& kind, OptimizerParamState& state) {
  optim::StateParts parts;
  optim::Fields fields(parts);
  kind.visit_state(state, fields);
  return parts;
}

}  // namespace

void check_capturable(const Optimizer* optimizer) {
  if (optimizer == nullptr) throw ArgumentError("GraphedStep: one of the optimizers is null");
  const auto reason = reason_not_capturable(*optimizer);
  if (reason.empty()) return;
  throw_error<ArgumentError>("GraphedStep: {}; a graph would freeze it. {}", reason, kRemedy);
}

HyperParameters::HyperParameters(const Optimizers& optimizers) {
  for (auto* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) groups_.push_back(group.options().clone());
  }
}

bool HyperParameters::operator==(const HyperParameters& other) const {
  return std::ranges::equal(groups_, other.groups_, [](const auto& left, const auto& right) {
    return same_group<optim::FusedSGDOptions, optim::FusedAdamOptions, optim::FusedAdamWOptions, SGDOptions,
                      RMSpropOptions, AdagradOptions>(*left, *right);
  });
}

void sync_learning_rates(const Optimizers& optimizers) {
  for (auto* optimizer : optimizers) {
    if (auto* fused = dynamic_cast<optim::FusedOptimizer*>(optimizer)) fused->update_lr_tensors();
  }
}

std::vector<at::Tensor> parameters_of(const Optimizers& optimizers) {
  std::vector<at::Tensor> parameters;
  for (auto* optimizer : optimizers) {
    const auto own = optim::parameters_of(*optimizer);
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  return parameters;
}

std::vector<ParameterState> states_of(const Optimizers& optimizers) {
  std::vector<ParameterState> states;
  for (auto* optimizer : optimizers) {
    const auto& kind = optim::kind_of(*optimizer);
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& parameter : group.params()) {
        void* key = parameter.unsafeGetTensorImpl();
        const auto at = optimizer->state().find(key);
        if (at == optimizer->state().end()) continue;
        auto parts = parts_of(kind, *at->second);
        states.push_back(
            {optimizer, key, std::move(parts.tensors), parts.steps == nullptr ? -1 : *parts.steps});
      }
    }
  }
  return states;
}

std::int64_t* step_of(const ParameterState& state) {
  auto& optimizer = *state.optimizer;
  return parts_of(optim::kind_of(optimizer), *optimizer.state().at(state.key)).steps;
}

}  // namespace lockstep::graphs
