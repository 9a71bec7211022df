// SPDX-License-Identifier: BSD-3-Clause
#include "optim/momentum_option.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/optimizers.h>

namespace lockstep::optim {
namespace {

template <typename Visit>
void visit_named(NamedOptions& options, const Visit& visit) {
  auto dict = options.to_dict();
  if (auto* betas = dict.find("betas")) {
    auto& items = std::get<Tuple>(betas->variant()).items;
    auto beta1 = items.front().as_double();
    visit(beta1, MomentumKind::beta1);
    items.front() = beta1;
  } else if (auto* momentum = dict.find("momentum")) {
    auto value = momentum->as_double();
    visit(value, MomentumKind::momentum);
    *momentum = value;
  }
  options.from_dict(dict, "options", /*complete=*/false);
}

// Calls `visit` with a reference to the option, and its kind.
template <typename Visit>
void visit_momentum(torch::optim::OptimizerOptions& options, const Visit& visit) {
  using namespace torch::optim;
  if (auto* sgd = dynamic_cast<SGDOptions*>(&options)) {
    visit(sgd->momentum(), MomentumKind::momentum);
  } else if (auto* rmsprop = dynamic_cast<RMSpropOptions*>(&options)) {
    visit(rmsprop->momentum(), MomentumKind::momentum);
  } else if (auto* adam = dynamic_cast<AdamOptions*>(&options)) {
    visit(std::get<0>(adam->betas()), MomentumKind::beta1);
  } else if (auto* adamw = dynamic_cast<AdamWOptions*>(&options)) {
    visit(std::get<0>(adamw->betas()), MomentumKind::beta1);
  } else if (auto* named = dynamic_cast<NamedOptions*>(&options)) {
    visit_named(*named, visit);
  }
}

}  // namespace

MomentumKind momentum_kind(torch::optim::OptimizerOptions& options) {
  auto found = MomentumKind::none;
  visit_momentum(options, [&found](double, MomentumKind kind) { found = kind; });
  return found;
}

void set_momentum(torch::optim::OptimizerOptions& options, double value) {
  visit_momentum(options, [value](double& momentum, MomentumKind) { momentum = value; });
}

}  // namespace lockstep::optim
