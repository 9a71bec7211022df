// SPDX-License-Identifier: BSD-3-Clause
#include "versions/trained_states.h"

#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>

namespace lockstep::versions {
namespace {

using Parameters = std::vector<at::Tensor>;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

at::Generator generator_of(std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator();
  generator.set_current_seed(seed);
  return generator;
}

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.5),
                               torch::nn::Linear(8, 2));
}

double sum_of_gradients(const torch::nn::Sequential& net) {
  double sum = 0;
  for (const auto& parameter : net->parameters())
    if (parameter.grad().defined()) sum += parameter.grad().abs().sum().item<double>();
  return sum;
}

bool nearly_equal(const std::vector<double>& left, const std::vector<double>& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool both_nan = std::isnan(left[i]) && std::isnan(right[i]);
    if (!both_nan && !(std::abs(left[i] - right[i]) <= 1e-5 + 1e-4 * std::abs(right[i]))) return false;
  }
  return true;
}

}  // namespace

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what + " is not as it was written");
}

at::Tensor numbers(std::int64_t count, at::ScalarType dtype) {
  return torch::arange(count, torch::kInt).to(dtype);
}

at::Tensor Run::Samples::get_batch(const at::Tensor& indices) const {
  const auto index = indices.to(at::kFloat) / 10;
  return torch::stack({index, index.square(), 1 - index}, 1);
}

Run::Run()
    : net_(make_net()),
      optimizer_(net_->parameters(), optim::FusedAdamWOptions(0.05)),
      scheduler_(optimizer_, 2, 0.5),
      plateau_(optimizer_, {.factor = 0.5, .patience = 1}),
      scaler_(at::kCPU, {.init_scale = 8, .growth_interval = 2}),
      average_(net_, {.multi_avg_fn = optim::get_ema_multi_avg_fn(0.9)}),
      loader_(data::DataLoader(Samples(), {.batch_size = 2, .shuffle = true, .generator = generator_of(5)})),
      confusion_(2) {
  state_.add("model", net_)
      .add("optimizer", optimizer_)
      .add("scheduler", scheduler_)
      .add("plateau", plateau_);
  state_.add("scaler", scaler_).add("average", average_).add("loader", loader_).add("stopping", stopping_);
  state_.add("meter", meter_).add("accuracy", accuracy_).add("confusion", confusion_).add("auroc", auroc_);
  state_.add("steps", steps_).add("phase", phase_).add("is_warm", is_warm_);
  state_.add_generator().add_gradients("gradients", net_);
}

void Run::make_steps(int count) {
  for (const auto& batch : loader_) {
    make_step(batch);
    if (--count == 0) return;
  }
}

void Run::make_step(const at::Tensor& batch) {
  trace_.push_back(sum_of_gradients(net_));
  optimizer_.zero_grad();
  const auto targets = batch.select(1, 0).mul(10).round().to(at::kLong).remainder(2);
  const auto scores = net_->forward(batch);
  const auto loss = torch::nn::functional::cross_entropy(scores, targets);
  scaler_.scale(loss).backward();
  scaler_.step(optimizer_);
  scaler_.update();
  scheduler_.step();
  plateau_.step(loss.item<double>());
  average_->update_parameters(net_);
  stopping_.step(loss.item<double>());
  meter_.update(loss.item<double>(), batch.size(0));
  accuracy_.update(scores, targets);
  confusion_.update(scores, targets);
  auroc_.update(scores.select(1, 1), targets);
  ++steps_;
  phase_ += " on";
  is_warm_ = steps_ > 1;
  average_->eval();
  for (const double value :
       {batch.sum().item<double>(), loss.item<double>(), scheduler_.get_last_lr()[0],
        plateau_.get_last_lr()[0], scaler_.get_scale(), average_->forward(batch).sum().item<double>(),
        stopping_.best().value_or(0), double{stopping_.stops() ? 1.0 : 0.0}, meter_.avg(),
        accuracy_.compute(), confusion_.compute().to(at::kDouble).select(0, 0).sum().item<double>(),
        auroc_.compute(), static_cast<double>(steps_), static_cast<double>(phase_.size()),
        is_warm_ ? 1.0 : 0.0})
    trace_.push_back(value);
}

void require_continued(Run& run) {
  run.make_steps(kStepsAfter);
  Run whole;
  whole.make_steps(kStepsBefore + kStepsAfter);
  const auto continued = static_cast<std::ptrdiff_t>(run.trace().size());
  require(nearly_equal(run.trace(), {whole.trace().end() - continued, whole.trace().end()}), "the run");
}

namespace {

template <typename Optimizer, typename Options>
std::function<OptimizerPointer(Parameters)> maker(Options options) {
  return [options](Parameters parameters) -> OptimizerPointer {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

const std::map<std::string, std::function<OptimizerPointer(Parameters)>>& optimizers() {
  namespace native = torch::optim;
  static const std::map<std::string, std::function<OptimizerPointer(Parameters)>> all{
      {"torch::optim::SGD", maker<native::SGD>(native::SGDOptions(0.1).momentum(0.9))},
      {"torch::optim::Adam", maker<native::Adam>(native::AdamOptions(0.1).amsgrad(true))},
      {"torch::optim::AdamW", maker<native::AdamW>(native::AdamWOptions(0.1))},
      {"torch::optim::Adagrad", maker<native::Adagrad>(native::AdagradOptions(0.1))},
      {"torch::optim::RMSprop", maker<native::RMSprop>(native::RMSpropOptions(0.1).momentum(0.5))},
      {"FusedSGD", maker<optim::FusedSGD>(optim::FusedSGDOptions(0.1).momentum(0.9))},
      {"FusedAdam", maker<optim::FusedAdam>(optim::FusedAdamOptions(0.1))},
      {"FusedAdamW", maker<optim::FusedAdamW>(optim::FusedAdamWOptions(0.1))},
      {"NAdam", maker<optim::NAdam>(optim::NAdamOptions())},
      {"RAdam", maker<optim::RAdam>(optim::RAdamOptions())},
      {"Adamax", maker<optim::Adamax>(optim::AdamaxOptions())},
      {"Adadelta", maker<optim::Adadelta>(optim::AdadeltaOptions())},
      {"ASGD", maker<optim::ASGD>(optim::ASGDOptions())},
      {"Rprop", maker<optim::Rprop>(optim::RpropOptions())},
      {"Adafactor", maker<optim::Adafactor>(optim::AdafactorOptions())},
      {"Muon", maker<optim::Muon>(optim::MuonOptions())},
      {"Lamb", maker<optim::Lamb>(optim::LambOptions())},
      {"Lars", maker<optim::Lars>(optim::LarsOptions())},
      {"Lion", maker<optim::Lion>(optim::LionOptions())}};
  return all;
}

using Schedulers = std::vector<optim::LRScheduler>;

const std::map<std::string, std::function<optim::LRScheduler(torch::optim::Optimizer&)>>& schedulers() {
  using Optimizer = torch::optim::Optimizer;
  static const std::map<std::string, std::function<optim::LRScheduler(Optimizer&)>> all{
      {"StepLR", [](Optimizer& of) { return optim::StepLR(of, 2, 0.5); }},
      {"MultiStepLR",
       [](Optimizer& of) {
         return optim::MultiStepLR(of, {2, 4}, 0.5);
       }},
      {"ConstantLR", [](Optimizer& of) { return optim::ConstantLR(of, 0.5, 4); }},
      {"LinearLR", [](Optimizer& of) { return optim::LinearLR(of, 0.5, 1.0, 5); }},
      {"ExponentialLR", [](Optimizer& of) { return optim::ExponentialLR(of, 0.9); }},
      {"PolynomialLR", [](Optimizer& of) { return optim::PolynomialLR(of, 5, 2.0); }},
      {"CosineAnnealingLR", [](Optimizer& of) { return optim::CosineAnnealingLR(of, 5); }},
      {"CosineAnnealingWarmRestarts",
       [](Optimizer& of) { return optim::CosineAnnealingWarmRestarts(of, 2, 2); }},
      {"CyclicLR",
       [](Optimizer& of) { return optim::CyclicLR(of, {.base_lr = 0.1, .max_lr = 0.5, .step_size_up = 2}); }},
      {"OneCycleLR", [](Optimizer& of) { return optim::OneCycleLR(of, {.max_lr = 0.5, .total_steps = 9}); }},
      {"SWALR", [](Optimizer& of) { return optim::SWALR(of, 0.05, 4); }},
      {"SequentialLR",
       [](Optimizer& of) {
         return optim::SequentialLR(
             of, Schedulers{optim::LinearLR(of, 0.5, 1.0, 2), optim::ExponentialLR(of, 0.9)}, {2});
       }},
      {"ChainedScheduler", [](Optimizer& of) {
         return optim::ChainedScheduler(
             Schedulers{optim::LinearLR(of, 0.5, 1.0, 2), optim::ExponentialLR(of, 0.9)});
       }}};
  return all;
}

// One parameter, its optimizer and, if `schedule` is given, a scheduler.
struct Small {
  at::Tensor weight = (numbers(12).reshape({4, 3}) / 10).requires_grad_();
  OptimizerPointer optimizer;
  std::optional<optim::LRScheduler> scheduler;

  explicit Small(const std::string& optimizer_name, const std::string& schedule = "")
      : optimizer(optimizers().at(optimizer_name)({weight})) {
    if (!schedule.empty()) scheduler.emplace(schedulers().at(schedule)(*optimizer));
  }

  void make_steps(int count) {
    for (; count > 0; --count) {
      optimizer->zero_grad();
      (weight.sin() * numbers(12).reshape({4, 3})).sum().backward();
      optimizer->step();
      if (scheduler) scheduler->step();
    }
  }

  Dict state() const {
    Dict dict{{"weight", weight.detach()}, {"optimizer", state_dict(*optimizer)}};
    if (scheduler) dict.set("scheduler", scheduler->state_dict());
    return dict;
  }

  void load(const Dict& dict) {
    weight.detach().copy_(dict.at("weight").as_tensor());
    load_state_dict(*optimizer, dict.at("optimizer").as_dict());
    if (scheduler) scheduler->load_state_dict(dict.at("scheduler").as_dict());
  }
};

Dict state_after_steps(Small small) {
  small.make_steps(kStepsBefore);
  return small.state();
}

void require_continued(Small continued, Small whole, const Dict& state, const std::string& name) {
  continued.load(state);
  continued.make_steps(kStepsAfter);
  whole.make_steps(kStepsBefore + kStepsAfter);
  require(continued.weight.allclose(whole.weight, 1e-4, 1e-6), name);
}

}  // namespace

Dict optimizer_states() {
  Dict states;
  for (const auto& [name, make] : optimizers()) states.set(name, state_after_steps(Small(name)));
  return states;
}

Dict scheduler_states() {
  Dict states;
  for (const auto& [name, make] : schedulers())
    states.set(name, state_after_steps(Small("torch::optim::SGD", name)));
  return states;
}

void require_optimizers(const Dict& states) {
  for (const auto& [name, state] : states)
    require_continued(Small(name.as_string()), Small(name.as_string()), state.as_dict(), name.as_string());
}

void require_schedulers(const Dict& states) {
  const auto fresh = [](const Value& name) { return Small("torch::optim::SGD", name.as_string()); };
  for (const auto& [name, state] : states)
    require_continued(fresh(name), fresh(name), state.as_dict(), name.as_string());
}

}  // namespace lockstep::versions
