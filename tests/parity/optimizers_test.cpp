// SPDX-License-Identifier: BSD-3-Clause
// The optimizers of optim/optimizers.h beside Python's: every step, the state dict, and training that changes
// languages.
#include <sstream>

#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/serialize/torch_file.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;
constexpr std::size_t kHalf = 10;
constexpr std::size_t kWhole = 20;

template <typename Options>
std::unique_ptr<torch::optim::Optimizer> make(const Tensors& parameters, const Value& one) {
  optim::GroupOptionsOf<Options> defaults;
  defaults.from_dict(one["options"].as_dict(), "options", /*complete=*/false);
  optim::GroupOptionsOf<Options> of_group;
  of_group.from_dict(one["of_group"].as_dict(), "of_group", /*complete=*/false);
  std::vector<OptimizerParamGroup> groups{OptimizerParamGroup(Tensors()),
                                          OptimizerParamGroup(Tensors(), of_group.clone())};
  for (std::size_t i = 0; i < parameters.size(); ++i) groups[i % 2].params().push_back(parameters[i]);
  return std::make_unique<optim::OptimizerOf<Options>>(groups, defaults);
}

std::unique_ptr<torch::optim::Optimizer> make(const Tensors& parameters, const Value& one) {
  const auto& kind = one["kind"].as_string();
  using namespace optim;
  if (kind == "NAdam") return make<NAdamOptions>(parameters, one);
  if (kind == "RAdam") return make<RAdamOptions>(parameters, one);
  if (kind == "Adamax") return make<AdamaxOptions>(parameters, one);
  if (kind == "Adadelta") return make<AdadeltaOptions>(parameters, one);
  if (kind == "ASGD") return make<ASGDOptions>(parameters, one);
  if (kind == "Rprop") return make<RpropOptions>(parameters, one);
  if (kind == "SparseAdam") return make<SparseAdamOptions>(parameters, one);
  if (kind == "Adafactor") return make<AdafactorOptions>(parameters, one);
  if (kind == "Muon") return make<MuonOptions>(parameters, one);
  if (kind == "Lamb") return make<LambOptions>(parameters, one);
  if (kind == "Lars") return make<LarsOptions>(parameters, one);
  return make<LionOptions>(parameters, one);
}

std::vector<std::int64_t> sizes_of(const Value& list) {
  std::vector<std::int64_t> sizes;
  for (const auto& size : list.as_items()) sizes.push_back(size.as_int());
  return sizes;
}

at::Tensor gradient_of(const Value& saved) {
  if (saved.is<None>()) return {};
  if (saved.is<at::Tensor>()) return saved.as_tensor();
  const auto& parts = saved.as_items();
  return at::sparse_coo_tensor(parts[0].as_tensor(), parts[1].as_tensor(), sizes_of(parts[2]));
}

class OptimizerSide {
 public:
  OptimizerSide(const Value& one, const Value& gradients)
      : gradients_(gradients[one["gradients"].as_string()].as_items()) {
    for (const auto& shape : one["shapes"].as_items()) {
      parameters.push_back(torch::zeros(sizes_of(shape), one["parameters"].as_tensor().options()));
      parameters.back().set_requires_grad(true);
    }
    set_parameters(one["parameters"].as_tensor());
    optimizer = make(parameters, one);
  }

  // Calls `after` with the number of each step.
  template <typename After>
  void train(std::size_t first, std::size_t last, const After& after) {
    for (auto step = first; step < last; ++step) {
      const auto& gradients = gradients_[step].as_items();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        parameters[i].mutable_grad() = gradient_of(gradients[i]);
      optimizer->step();
      after(step);
    }
  }

  void load(const at::Tensor& values, const Value& state) {
    set_parameters(values);
    load_state_dict(*optimizer, state.as_dict());
  }
  at::Tensor values() const {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : parameters) parts.push_back(parameter.detach().flatten());
    return at::cat(parts);
  }

  Tensors parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

 private:
  void set_parameters(const at::Tensor& values) {
    const torch::NoGradGuard no_grad;
    std::int64_t first = 0;
    for (const auto& parameter : parameters) {
      parameter.copy_(values.narrow(0, first, parameter.numel()).view_as(parameter));
      first += parameter.numel();
    }
  }

  const std::vector<Value>& gradients_;
};

bool is_number(const Value& value) { return value.is<double>() || value.is<std::int64_t>(); }

// How far the tensors are apart; infinite if anything else differs. Python has 0 for 0.0.
double distance(const Value& left, const Value& right) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  if (left.is<at::Tensor>() && right.is<at::Tensor>()) {
    if (left.as_tensor().sizes() != right.as_tensor().sizes()) return infinity;
    if (left.as_tensor().scalar_type() != right.as_tensor().scalar_type()) return infinity;
    const auto most = (left.as_tensor() - right.as_tensor()).abs().max().item<double>();
    return std::isnan(most) ? infinity : most;
  }
  if (is_number(left) && is_number(right)) return left.as_double() == right.as_double() ? 0 : infinity;
  double most = 0;
  if (left.is<Dict>() && right.is<Dict>()) {
    if (left.as_dict().size() != right.as_dict().size()) return infinity;
    for (const auto& [key, value] : left.as_dict()) {
      const auto* other = right.as_dict().find(key);
      most = std::max(most, other == nullptr ? infinity : distance(value, *other));
    }
    return most;
  }
  if (left.type_name() != right.type_name() || (!left.is<List>() && !left.is<Tuple>()))
    return equal(left, right) ? 0 : infinity;
  if (left.as_items().size() != right.as_items().size()) return infinity;
  for (std::size_t i = 0; i < left.as_items().size(); ++i)
    most = std::max(most, distance(left.as_items()[i], right.as_items()[i]));
  return most;
}

// Lion keeps the option in the optimizer, not in its groups.
Dict state_of(const torch::optim::Optimizer& optimizer, const std::string& kind) {
  auto state = state_dict(optimizer);
  if (kind != "Lion") return state;
  List groups;
  for (auto group : state.at("param_groups").as_items()) {
    group.as_dict().erase("decoupled_weight_decay");
    groups.items.push_back(std::move(group));
  }
  state.set("param_groups", std::move(groups));
  return state;
}

Value copy_of(const Value& value) {
  if (value.is<at::Tensor>()) return value.as_tensor().clone();
  auto copy = value;
  if (auto* dict = copy.get_if<Dict>()) {
    for (const auto& [key, item] : value.as_dict()) dict->set(key, copy_of(item));
  }
  return copy;
}

double allowed_for(const std::string& kind) {
  return kind == "Lamb" || kind == "Lars" || kind == "Lion" ? 1e-6 : 0;
}

TEST(Optimizers, MatchPythonAndContinueInTheOtherLanguage) {
  const auto restore =
      c10::make_scope_exit([threads = at::get_num_threads()] { at::set_num_threads(threads); });
  at::set_num_threads(1);  // as in Python, and threads that wait for a busy machine take long
  const TempFolder folder;
  run_python("parity/optimizers.py", {.args = {"first", folder.path().string()}});
  const auto saved = load(folder.file("cases.pt"));
  List halves;
  for (const auto& one : saved["cases"].as_items()) {
    const auto& kind = one["kind"].as_string();
    SCOPED_TRACE(kind + repr(one["options"]) + repr(one["of_group"]));
    const auto most = allowed_for(kind);
    const auto compare_step = [&](const OptimizerSide& side, std::size_t step) {
      ASSERT_LE(distance(side.values(), one["steps"].as_tensor()[static_cast<std::int64_t>(step)]), most)
          << step;
    };
    OptimizerSide whole(one, saved["gradients"]);
    const auto start = state_of(*whole.optimizer, kind);
    EXPECT_EQ(distance(start.at("param_groups"), one["groups"]), 0) << repr(start) << "\n"
                                                                    << repr(one["groups"]);
    whole.train(0, kHalf, [&](std::size_t step) { compare_step(whole, step); });
    const Value half(state_dict(*whole.optimizer));
    halves.items.emplace_back(Dict{{"parameters", whole.values()}, {"optimizer", copy_of(half)}});
    whole.train(kHalf, kWhole, [&](std::size_t step) { compare_step(whole, step); });
    const auto end = state_of(*whole.optimizer, kind);
    EXPECT_LE(distance(end, one["end"]), most) << repr(end) << "\n" << repr(one["end"]);

    OptimizerSide from_python(one, saved["gradients"]);
    from_python.load(one["steps"].as_tensor()[kHalf - 1], one["half"]);
    from_python.train(kHalf, kWhole, [](std::size_t) {});
    EXPECT_LE(distance(from_python.values(), one["resumed"]), most) << "Python, then C++";
  }
  save(halves, folder.file("halves.pt"));
  run_python("parity/optimizers.py", {.args = {"second", folder.path().string()}});
}

at::Tensor parameter_of(at::IntArrayRef sizes) { return torch::zeros(sizes).set_requires_grad(true); }

template <typename Optimizer>
void expect_same_after_archive(const typename Optimizer::Arguments& options) {
  const auto parameter = parameter_of({2, 2});
  parameter.mutable_grad() = torch::ones({2, 2});
  Optimizer saved({parameter}, options);
  saved.step();
  std::stringstream archive;
  torch::save(saved, archive);
  Optimizer loaded({parameter});
  torch::load(loaded, archive);
  EXPECT_EQ(distance(loaded.state_dict(), saved.state_dict()), 0) << repr(loaded.state_dict());
  EXPECT_TRUE(loaded.param_groups()[0].options().get_lr() == 0.25);
}

TEST(Optimizers, GoThroughArchives) {
  expect_same_after_archive<optim::NAdam>({.lr = 0.25, .betas = {0.5, 0.5}, .maximize = true});
  expect_same_after_archive<optim::Adafactor>({.lr = 0.25, .eps = {0.5, 0.5}});
  expect_same_after_archive<optim::Lamb>({.lr = 0.25, .max_grad_norm = std::nullopt});
  expect_same_after_archive<optim::Muon>({.lr = 0.25, .adjust_lr_fn = "original"});
}

TEST(Optimizers, GiveOptionsOfGroupsTheDefaults) {
  using Group = optim::NAdam::GroupOptions;
  optim::NAdam optimizer({parameter_of({2})}, {.lr = 0.1, .momentum_decay = 0.3, .maximize = true});
  optimizer.add_param_group({{parameter_of({2})}, std::make_unique<Group>(optim::NAdamOptions{.eps = 0.5})});
  const auto& options = dynamic_cast<Group&>(optimizer.param_groups()[1].options());
  optim::NAdamOptions expected{.lr = 0.1, .eps = 0.5, .momentum_decay = 0.3, .maximize = true};
  EXPECT_TRUE(options == Group(expected));
  expected.maximize = false;
  EXPECT_FALSE(options == Group(expected));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.1);
}

TEST(Optimizers, StepWithAClosureAndCountSharedParametersOnce) {
  const auto parameter = torch::ones({2}).set_requires_grad(true);
  optim::Lion optimizer({parameter, parameter}, 0.5);
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto sum = parameter.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 2);
  EXPECT_TRUE(parameter.equal(torch::full({2}, 0.5)));
}

// As in Python, whose schedules may end below zero by a rounding error.
TEST(Optimizers, StepWithAnyRateThatIsSetLater) {
  const auto parameter = torch::ones({2}).set_requires_grad(true);
  optim::NAdam optimizer({parameter}, 0.5);
  parameter.mutable_grad() = torch::ones({2});
  optimizer.param_groups()[0].options().set_lr(-1e-18);
  optimizer.step();
  EXPECT_TRUE(parameter.equal(torch::ones({2})));

  optim::SparseAdam sparse({parameter});
  parameter.mutable_grad() = torch::ones({2}).to_sparse();
  sparse.param_groups()[0].options().set_lr(0);
  sparse.step();
  EXPECT_TRUE(parameter.equal(torch::ones({2})));
}

TEST(Optimizers, RefuseWhatDoesNotFit) {
  const auto refuses = [](const auto& action, const std::string& words) {
    EXPECT_THAT(error_of(action), HasSubstr(words));
  };
  const auto parameter = parameter_of({2});
  refuses(
      [&] {
        optim::NAdam({OptimizerParamGroup({parameter_of({1})}),
                      OptimizerParamGroup({parameter_of({1}), parameter}), OptimizerParamGroup({parameter})});
      },
      "NAdam: parameter 0 of group 2 is in group 1 already");
  refuses([&] { optim::Lion({parameter}, {.lr = 0, .decoupled_weight_decay = true}); },
          "above 0 with decoupled_weight_decay");
  optim::RAdam replaced({parameter});
  replaced.param_groups()[0].set_options(std::make_unique<optim::NAdam::GroupOptions>());
  refuses([&] { replaced.step(); }, "give it RAdam::GroupOptions");
  refuses([&] { optim::NAdam({parameter}, -1); }, "NAdam: lr must be 0 or more, not -1");
  refuses([&] { optim::RAdam({parameter}, {.betas = {0.5, 1}}); }, "second of betas");
  refuses([&] { optim::Rprop({parameter}, {.etas = {0.5, 1}}); }, "second of etas");
  refuses([&] { optim::Lars({parameter}, {.nesterov = true}); }, "nesterov");
  refuses([&] { optim::Muon({parameter}); }, "1 dimensions, not 2");
  refuses([&] { optim::Adamax({torch::zeros({2}, torch::kLong)}); }, "not a dense floating-point tensor");
  refuses(
      [&] {
        optim::Adamax({OptimizerParamGroup({parameter}, std::make_unique<torch::optim::AdamOptions>())});
      },
      "give it Adamax::GroupOptions");

  optim::SparseAdam sparse({parameter});
  parameter.mutable_grad() = torch::ones({2});
  refuses([&] { sparse.step(); }, "has a dense gradient");
  optim::NAdam optimizer({parameter}, 0.25);
  optimizer.step();
  const auto before = optimizer.state_dict();
  refuses([&] { optimizer.load_state_dict(sparse.state_dict()); }, "param_groups[0] has no 'weight_decay'");
  auto state = before;
  state.at("param_groups") = List();
  refuses([&] { optimizer.load_state_dict(state); }, "0 instead of 1");
  for (const auto& [key, words] : Dict{{"mu_product", "has no 'mu_product'"}, {"exp_avg", "has shape [3]"}}) {
    state = before;
    auto changed = before.at("state")[0].as_dict();
    changed.erase(key);
    if (key.as_string() == "exp_avg") changed.set(key, torch::zeros({3}));
    state.set("state", Dict{{0, changed}});
    refuses([&] { optimizer.load_state_dict(state); }, words.as_string());
    EXPECT_TRUE(equal(optimizer.state_dict(), before));
  }
}

}  // namespace
}  // namespace lockstep::testing
