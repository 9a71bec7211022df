// SPDX-License-Identifier: BSD-3-Clause
// The state of one rank, as elastic runs keep it.
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/unique_fd.h"
#include "checkpoint/commit_memory.h"
#include "checkpoint/training_state_access.h"
#include "intercept/storage_guard.h"
#include "modules/rank_part.h"
#include "support/error_of.h"
#include "unit/ddp/fake_group.h"

namespace lockstep::checkpointing {
namespace {

using Access = TrainingStateAccess;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

// As a replacement gets it: through the memory of a run.
Dict committed(const TrainingState& state) {
  const UniqueFd file(::memfd_create("commits", 0));
  CommitMemory(file.get()).write(0, {{.key = 0, .state = Access::own_state_dict(state)}});
  return CommitMemory(file.get()).read(0, 0).as_dict();
}

data::TensorDataset samples() {
  const auto values = torch::arange(40 * 3 * 8 * 8, torch::kFloat).reshape({40, 3, 8, 8}).sin();
  return {values, torch::arange(40) % 5};
}

// A training with every kind of part.
struct Training {
  explicit Training(std::uint64_t seed) {
    manual_seed(seed);
    net->push_back(torch::nn::Conv2d(3, 8, 3));
    net->push_back(torch::nn::BatchNorm2d(8));
    net->push_back(torch::nn::Dropout(0.3));
    net->push_back(torch::nn::Flatten());
    net->push_back(torch::nn::Linear(8 * 36, 5));
    optimizer.emplace(net->parameters(), torch::optim::AdamWOptions(1e-2).amsgrad(true));
    schedule.emplace(*optimizer, 2, 0.5);
    state.add("net", net).add("optimizer", *optimizer).add("schedule", *schedule).add("loader", loader);
    state.add("scaler", scaler).add("loss", loss).add("auroc", auroc).add("step", step).add("note", note);
    state.add_generator().add_functions(
        "history", [this] { return Value(List(std::vector<Value>(history.begin(), history.end()))); },
        [this](const Value& value) {
          history.clear();
          for (const auto& item : value.as_items()) history.push_back(item.as_double());
        });
  }

  // Calls `commit` after each step.
  void train_until(
      std::int64_t last, const std::function<void()>& commit = [] {}) {
    constexpr std::int64_t kStepsOfEpoch = 10;
    while (step < last) {
      loader.set_epoch(step / kStepsOfEpoch);
      for (auto& batch : loader) {
        optimizer->zero_grad();
        const auto scores = net->forward(batch.data);
        const auto value = torch::nn::functional::cross_entropy(scores, batch.target);
        scaler.scale(value).backward();
        scaler.step(*optimizer);
        scaler.update();
        schedule->step();
        loss.update(value.detach(), batch.target.size(0));
        auroc.update(scores.detach().select(1, 0).sigmoid(), batch.target.eq(0).to(torch::kLong));
        history.push_back(value.item<double>());
        note = std::to_string(++step);
        commit();
        if (step == last) return;
      }
    }
  }

  // A step that fails after backward.
  void fail_in_step() {
    for (auto& batch : loader) {
      const auto value = torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      scaler.scale(value).backward();
      scaler.unscale_(*optimizer);
      step = -1;
      return;
    }
  }

  Dict all() const {
    auto dict = Access::own_state_dict(state);
    return load_bytes(save_bytes(dict)).as_dict();
  }

  torch::nn::Sequential net;
  std::optional<torch::optim::AdamW> optimizer;
  std::optional<optim::StepLR> schedule;
  decltype(data::DataLoader(samples(), data::DataLoaderOptions())) loader =
      data::DataLoader(samples(), {.batch_size = 4, .shuffle = true, .seed = 3});
  amp::GradScaler scaler{at::kCPU, {.init_scale = 1024, .growth_interval = 3}};
  metrics::AverageMeter loss;
  metrics::Auroc auroc;
  std::int64_t step = 0;
  std::string note;
  std::vector<double> history;
  TrainingState state;
};

std::map<std::string, const void*> addresses(Training& training) {
  std::map<std::string, const void*> all;
  const auto state = Access::own_state_dict(training.state);
  for (const auto& [name, tensor] : state.at("net").as_dict())
    all[name.as_string()] = tensor.as_tensor().const_data_ptr();
  for (const auto& [index, values] : state.at("optimizer").as_dict().at("state").as_dict()) {
    for (const auto* name : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
      all[fmt::format("{} {}", repr(index), name)] = values.as_dict().at(name).as_tensor().const_data_ptr();
  }
  return all;
}

TEST(OwnState, OfEveryKindOfPartIsRestoredInPlace) {
  Training training(1);
  Dict kept;
  training.train_until(27, [&] {
    if (training.step == 14) kept = committed(training.state);  // within the second epoch
  });
  const auto undisturbed = training.all();
  const auto before = addresses(training);
  training.fail_in_step();
  Access::load_own_state_dict(training.state, kept);
  EXPECT_EQ(addresses(training), before);
  EXPECT_EQ(training.step, 14);
  for (const auto& parameter : training.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_TRUE(equal(training.all(), kept));
  training.train_until(27);
  EXPECT_TRUE(equal(training.all(), undisturbed));

  Training replacement(2);
  Access::load_own_state_dict(replacement.state, kept);
  EXPECT_TRUE(equal(replacement.all(), kept));
  replacement.train_until(27);
  EXPECT_TRUE(equal(replacement.all(), undisturbed));
}

TEST(OwnState, OfTheBeginningDropsStatesOfOptimizers) {
  Training training(1);
  const auto kept = committed(training.state);
  training.train_until(5);
  const auto undisturbed = training.all();
  Access::load_own_state_dict(training.state, kept);
  EXPECT_TRUE(training.optimizer->state().empty());
  training.train_until(5);
  EXPECT_TRUE(equal(training.all(), undisturbed));
}

// Steps, keeps the state, steps on, and does the same again from the state.
void expect_repeats(
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  torch::manual_seed(1);
  torch::nn::Linear net(3, 3);
  const auto optimizer = make(net->parameters());
  TrainingState state;
  state.add("net", net).add("optimizer", *optimizer);
  const auto steps = [&](int from) {
    for (int i = from; i < from + 3; ++i) {
      const auto closure = [&] {
        optimizer->zero_grad();
        auto loss = net->forward(torch::full({2, 3}, 0.1 * i)).pow(2).sum();
        loss.backward();
        return loss;
      };
      dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) != nullptr ? optimizer->step(closure)
                                                                     : (closure(), optimizer->step());
    }
    return load_bytes(save_bytes(Access::own_state_dict(state)));
  };
  steps(0);
  const auto kept = committed(state);
  const auto undisturbed = steps(3);
  Access::load_own_state_dict(state, kept);
  EXPECT_TRUE(equal(Access::own_state_dict(state), kept));
  EXPECT_TRUE(equal(steps(3), undisturbed));
}

TEST(OwnState, OfOptimizers) {
  using Parameters = std::vector<at::Tensor>;
  using torch::optim::SGDOptions;
  expect_repeats([](Parameters all) {
    return std::make_unique<torch::optim::SGD>(all, SGDOptions(0.1).momentum(0.9).nesterov(true));
  });
  expect_repeats([](Parameters all) { return std::make_unique<torch::optim::SGD>(all, SGDOptions(0.1)); });
  expect_repeats([](Parameters all) { return std::make_unique<torch::optim::Adam>(all, 0.1); });
  expect_repeats([](Parameters all) { return std::make_unique<torch::optim::RMSprop>(all, 0.1); });
  expect_repeats([](Parameters all) { return std::make_unique<torch::optim::Adagrad>(all, 0.1); });
  expect_repeats([](Parameters all) { return std::make_unique<torch::optim::LBFGS>(all, 0.1); });
  expect_repeats([](Parameters all) {
    return std::make_unique<optim::FusedAdamW>(all, optim::FusedAdamWOptions(torch::tensor(0.1F)));
  });
  expect_repeats([](Parameters all) { return std::make_unique<optim::FusedSGD>(all, 0.1); });
  expect_repeats([](Parameters all) { return std::make_unique<optim::Adafactor>(all, 0.1); });
}

TEST(OwnState, KeepsAStateOfAnotherDtypeThanItsParameter) {
  torch::nn::Linear net(3, 3);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  net->forward(torch::ones({1, 3})).sum().backward();
  optimizer.step();
  net->to(torch::kBFloat16);
  TrainingState state;
  state.add("optimizer", optimizer);
  const auto kept = committed(state);
  Access::load_own_state_dict(state, kept);
  EXPECT_TRUE(equal(Access::own_state_dict(state), kept));
}

TEST(OwnState, HasGradientsThatAccumulateInBuckets) {
  const testing::FakeGroup fake(1);
  for (const bool view : {true, false}) {
    torch::manual_seed(1);
    torch::nn::Linear net(3, 2);
    DistributedDataParallel ddp(net, {.process_group = fake.group, .gradient_as_bucket_view = view});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    TrainingState with(fake.group), without(fake.group);
    with.add("ddp", ddp).add("optimizer", optimizer).add_gradients("gradients", net);
    without.add("ddp", ddp).add("optimizer", optimizer);
    const auto backward = [&](double input) {
      ddp->forward(torch::full({1, 3}, input)).pow(2).sum().backward();
    };
    const auto step = [&] {
      backward(2);
      optimizer.step();
      auto weights = load_bytes(save_bytes(state_dict(ddp)));
      optimizer.zero_grad();
      return weights;
    };
    const auto begin = committed(without);
    const auto from_zero = step();
    Access::load_own_state_dict(without, begin);
    backward(1);
    const auto kept = committed(with);
    const auto accumulated = step();
    EXPECT_FALSE(equal(accumulated, from_zero));
    backward(7);
    Access::load_own_state_dict(with, kept);
    EXPECT_TRUE(equal(step(), accumulated)) << view;
    backward(7);
    Access::load_own_state_dict(without, begin);
    EXPECT_FALSE(net->weight.grad().defined());
    EXPECT_TRUE(equal(step(), from_zero)) << view;
    EXPECT_EQ(Access::modules(with).front(), &static_cast<torch::nn::Module&>(*ddp));
    EXPECT_EQ(Access::optimizers(with).front(), &optimizer);
  }
}

class NoGuard final : public intercept::OperatorGuard {
 public:
  bool run(const c10::OperatorHandle& /*op*/, torch::jit::Stack& /*stack*/) override { return false; }
};

TEST(OwnState, OfPartsThatAreDistributedIsRefused) {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  intercept::set_guard(net->weight, std::make_unique<NoGuard>());
  const auto error = [](const TrainingState& state) {
    return error_of<ArgumentError>([&] { Access::own_state_dict(state); });
  };
  EXPECT_THAT(
      error(TrainingState().add("net", net)),
      AllOf(HasSubstr("'net' cannot be part of an elastic run yet"), HasSubstr("parallelize_module()")));
  EXPECT_THAT(error(TrainingState().add("optimizer", optimizer)), HasSubstr("'optimizer' cannot be part"));
  struct Together {
    Dict state_dict(const std::optional<ProcessGroup>& /*group*/) const { return {}; }
    void load_state_dict(const Dict& /*dict*/, const std::optional<ProcessGroup>& /*group*/) {}
  } together;
  EXPECT_THAT(error(TrainingState().add("sums", together)),
              AllOf(HasSubstr("'sums'"), HasSubstr("own_state_dict()")));
}

// The rank has a part of the parameter, as with fully_shard().
class Part final : public intercept::MemoryGuard, public modules::RankPart {
 public:
  Part(const at::Tensor& parameter, at::Tensor part)
      : parameter_(parameter.unsafeGetTensorImpl()), part_(std::move(part)) {}
  Views before_use(std::string_view /*op*/, bool /*writes*/) override { return Views::guarded; }
  at::Tensor part_of(const at::Tensor& parameter) const override {
    return parameter.unsafeGetTensorImpl() == parameter_ ? part_ : at::Tensor();
  }
  modules::RankPartOwner& owner() const override { throw std::logic_error("nothing rejoins"); }

 private:
  const void* parameter_;
  at::Tensor part_;
};

TEST(OwnState, OfPartsFitsInShapeAndDtype) {
  torch::nn::Linear net(2, 2);
  TrainingState state;
  state.add("net", net);
  const auto set_part = [&](const at::Tensor& part) {
    intercept::set_guard(net->weight, std::make_unique<Part>(net->weight, part));
  };
  set_part(torch::ones({1, 2}));
  const auto kept = committed(state);
  const auto same = torch::zeros({1, 2});
  set_part(same);
  Access::load_own_state_dict(state, kept);
  EXPECT_TRUE(same.equal(torch::ones({1, 2})));
  for (const auto& other : {torch::zeros({1, 2}, torch::kDouble), torch::zeros({2, 2})}) {
    set_part(other);
    EXPECT_THAT(error_of([&] { Access::load_own_state_dict(state, kept); }),
                HasSubstr("'net' of the commit does not fit: its tensor 'weight' is Float of shape [1, 2]"));
  }
}

TEST(OwnState, OfATensorWithTheMemoryOfAPartIsRefused) {
  torch::nn::Linear net(2, 2), alias(2, 2);
  intercept::set_guard(net->weight, std::make_unique<Part>(net->weight, torch::ones({1, 2})));
  alias->weight.unsafeGetTensorImpl()->shallow_copy_from(net->weight.getIntrusivePtr());
  EXPECT_THAT(error_of<ArgumentError>([&] { Access::own_state_dict(TrainingState().add("alias", alias)); }),
              HasSubstr("parameter weight is another tensor with the memory of a sharded parameter"));
}

TEST(OwnState, ThatDoesNotFitIsRefusedByName) {
  torch::nn::Linear net(2, 2), other(2, 3);
  const auto kept = committed(TrainingState().add("net", net));
  TrainingState state;
  state.add("net", other);
  EXPECT_THAT(error_of([&] { Access::load_own_state_dict(state, kept); }),
              HasSubstr("'net' of the commit does not fit"));
}

TEST(Commit, CallsWhatElasticRunsSet) {
  struct Count final : Committer {
    void commit(const TrainingState& state, std::source_location where) override {
      last = &state;
      line = where.line();
    }
    const TrainingState* last = nullptr;
    std::uint_least32_t line = 0;
  } count;
  TrainingState state;
  state.commit();
  Access::set_committer(state, &count);
  state.commit();
  EXPECT_EQ(count.last, &state);
  EXPECT_EQ(count.line, __LINE__ - 2);
  Access::set_committer(state, nullptr);
  state.commit();
}

}  // namespace
}  // namespace lockstep::checkpointing
