// SPDX-License-Identifier: BSD-3-Clause
// Ranks that compute wrongly are named before the optimizer steps. LOCKSTEP_FAULT_ROUNDS=500 for as many flipped bits,
// and ten times as many steps without a fault; LOCKSTEP_FAULT_SEED to see the same flips again.
#include <array>
#include <bit>
#include <cstring>
#include <iostream>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/env.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

constexpr const char* kSeed = "LOCKSTEP_FAULT_SEED";
constexpr int kInputs = 6;
constexpr int kHidden = 16;
constexpr int kClasses = 3;

struct Flip {
  std::int64_t element = 0;
  int bit = 0;
};

at::Tensor flipped(const at::Tensor& tensor, const Flip& flip) {
  const c10::NoGradGuard no_grad;
  auto copy = tensor.clone().contiguous();
  auto& value = copy.mutable_data_ptr<float>()[flip.element % copy.numel()];
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << flip.bit));
  return copy;
}

struct Faults {
  std::optional<Flip> activation = {};
  std::optional<Flip> gradient = {};   // of an activation
  std::optional<Flip> parameter = {};  // the gradient of the last weight
  bool product = false;                // one element of each product is too large
};

// The identity, but for faults.
struct Fault : torch::autograd::Function<Fault> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Faults* faults) {
    context->saved_data["faults"] = reinterpret_cast<std::int64_t>(faults);
    if (faults->activation) return flipped(x, *faults->activation);
    auto result = x.clone();
    if (faults->product) result[0][0] += 1e-3;
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto* const faults = reinterpret_cast<const Faults*>(context->saved_data["faults"].toInt());
    return {faults->gradient ? flipped(gradients[0], *faults->gradient) : gradients[0], at::Tensor()};
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    last->weight.register_hook([this](const at::Tensor& gradient) {
      return faults.parameter ? flipped(gradient, *faults.parameter) : gradient;
    });
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::relu(norm->forward(Fault::apply(first->forward(x), &faults)));
    return last->forward(dropout->forward(y));
  }

  Faults faults;
  torch::nn::Linear first{register_module("first", torch::nn::Linear(kInputs, kHidden))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(kHidden))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.2))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(kHidden, kClasses))};
};
TORCH_MODULE(Net);

// Another one for each rank and step, of another size on each rank.
data::Batch batch_of(int rank, std::int64_t step) {
  const auto size = 5 + rank;
  return {(torch::arange(size * kInputs).view({size, kInputs}) + 100 * rank + 31 * step).sin(),
          (torch::arange(size) + step).remainder(kClasses)};
}

at::Tensor loss_of(Net& net, const data::Batch& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> gradients;
  for (const auto& each : net.parameters()) gradients.push_back(each.grad());
  return gradients;
}

bool have_equal_bits(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::ranges::equal(some, others, [](const at::Tensor& one, const at::Tensor& other) {
    return std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
  });
}

// Whether the faults change what this rank adds to the mean of the gradients in its next step.
bool changes_gradient(Net& net, const Faults& faults, const data::Batch& batch, int ranks) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto state = generator.get_state();
  std::vector<std::vector<at::Tensor>> gradients;
  for (const auto& each : {Faults(), faults}) {
    Net twin;
    {
      const c10::NoGradGuard no_grad;
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        twin->parameters()[i].copy_(net->parameters()[i]);
    }
    twin->faults = each;
    generator.set_state(state.clone());
    loss_of(twin, batch).backward();
    gradients.push_back(gradients_of(*twin));
    for (const auto& gradient : gradients.back()) gradient.div_(ranks);
  }
  generator.set_state(state);
  return !have_equal_bits(gradients[0], gradients[1]);
}

Faults random_faults(std::mt19937& random) {
  Faults faults;
  const Flip flip{.element = static_cast<std::int64_t>(random() % 1000),
                  .bit = static_cast<int>(random() % 32)};
  const std::array places{&faults.activation, &faults.gradient, &faults.parameter};
  *places.at(random() % places.size()) = flip;
  return faults;
}

std::int64_t rounds() { return Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(30); }

// The error of the step, if there is one. `faults`: of the rank itself, not of what it computes for others.
std::optional<VerificationError> error_in_step(StepVerifier& verifier, DistributedDataParallel<Net>& ddp,
                                               data::Batch& batch, const Faults& faults) {
  try {
    verifier.run(batch, [&](const data::Batch& each) {
      ddp.module()->faults = verifier.is_replaying() ? Faults() : faults;
      torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
    });
  } catch (const VerificationError& error) {
    return error;
  }
  return std::nullopt;
}

const testing::Scenario flips("verify flips", [] {
  const auto context = init({.backend = "shm"});
  std::mt19937 random(static_cast<unsigned>(Env().get_int(kSeed).value()));
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.05);
  StepVerifier verifier(ddp, {.interval = 1, .all_ranks = true, .optimizer = &optimizer});
  int found = 0;
  for (std::int64_t step = 0; step < rounds(); ++step) {
    const auto wrong = static_cast<int>(random() % static_cast<unsigned>(context.world_size()));
    const auto faults = random_faults(random);
    auto batch = batch_of(context.rank(), step);
    const bool is_wrong = context.rank() == wrong;
    const auto changes =
        torch::full({1}, is_wrong && changes_gradient(net, faults, batch, context.world_size()) ? 1.0 : 0.0);
    context.group().broadcast(changes, wrong);
    optimizer.zero_grad();
    const auto error = error_in_step(verifier, ddp, batch, is_wrong ? faults : Faults());
    ASSERT_EQ(error.has_value(), changes.item<float>() == 1) << "step " << step;
    if (!error) {
      optimizer.step();
      continue;
    }
    ++found;
    EXPECT_THAT(error->ranks(), ElementsAre(wrong));
    EXPECT_EQ(error->step(), step + 1);
    EXPECT_THAT(error->what(),
                HasSubstr(fmt::format("rank {} computed another gradient of {} than two other ranks", wrong,
                                      error->tensor())));
  }
  EXPECT_GT(found, 0);
  if (context.is_main_process())
    std::cout << found << " of " << rounds() << " flips changed a gradient" << std::endl;
});

TEST(StepVerifier, FindsEveryFlippedBitThatChangesAGradient) {
  const auto seed = Env().get_int(kSeed).value_or(std::random_device()());
  std::cout << kSeed << "=" << seed << std::endl;
  testing::expect_all_passed(testing::run_ranks(
      flips,
      {.world_size = 4, .env = {{kSeed, std::to_string(seed)}}, .timeout = std::chrono::seconds(600)}));
}

// Rank 2 is wrong in its own steps and in what it computes for rank 1.
const testing::Scenario always_wrong("verify always wrong", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.05);
  for (const bool all_ranks : {false, true}) {
    StepVerifier verifier(ddp, {.interval = 3, .all_ranks = all_ranks});
    net->faults.product = context.rank() == 2;
    std::optional<VerificationError> error;
    std::int64_t step = 0;
    for (; !error && step < 3 * context.world_size(); ++step) {
      optimizer.zero_grad();
      auto batch = batch_of(context.rank(), step);
      try {
        verifier.run(batch, [&](auto& each) {
          torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
        });
        optimizer.step();
      } catch (const VerificationError& thrown) {
        error = thrown;
      }
    }
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(2));
    EXPECT_EQ(error->step(), all_ranks ? 3 : 6);
    EXPECT_EQ(error->group(), "default");
  }
});

TEST(StepVerifier, FindsARankThatIsAlwaysWrongInTheSameWay) {
  testing::expect_all_passed(testing::run_ranks(always_wrong, {.world_size = 4}));
}

const testing::Scenario of_two("verify two", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  StepVerifier verifier(ddp, {.interval = 1});
  auto batch = batch_of(context.rank(), 0);
  const auto error =
      error_in_step(verifier, ddp, batch,
                    {.gradient = context.rank() == 0 ? std::optional(Flip{.bit = 30}) : std::nullopt});
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(0, 1));
  EXPECT_THAT(error->what(), HasSubstr("no third rank can decide which of them is wrong"));
});

TEST(StepVerifier, NamesBothOfTwoRanks) { testing::expect_all_passed(testing::run_ranks(of_two)); }

void flip_on(int rank, const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  if (get_rank() == rank) tensor.copy_(flipped(tensor, {.element = 5, .bit = 20}));
}

const testing::Scenario parameters("verify parameters", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  torch::optim::Adam optimizer(ddp->parameters(), 0.05);
  StepVerifier verifier(ddp, {.interval = 2, .optimizer = &optimizer});
  const auto step = [&](std::int64_t number) {
    auto batch = batch_of(context.rank(), number);
    optimizer.zero_grad();
    auto error = error_in_step(verifier, ddp, batch, {});
    if (!error) optimizer.step();
    return error;
  };
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(step(i));
  flip_on(1, net->last->weight);
  ASSERT_FALSE(step(4));
  auto error = step(5);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(1));
  EXPECT_EQ(error->tensor(), "module.last.weight");

  broadcast_module(net);
  ASSERT_FALSE(step(6));
  auto& state = *optimizer.state().at(net->first->weight.unsafeGetTensorImpl());
  flip_on(0, static_cast<torch::optim::AdamParamState&>(state).exp_avg());
  error = step(7);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(0));
  EXPECT_THAT(error->tensor(), AllOf(HasSubstr("optimizer"), HasSubstr("exp_avg")));
  EXPECT_THAT(error->what(), HasSubstr("on rank 0 differ from those of the majority of ranks"));
});

TEST(StepVerifier, FindsOtherParametersAndStatesOfTheOptimizer) {
  testing::expect_all_passed(testing::run_ranks(parameters, {.world_size = 3}));
}

struct Case {
  DistributedDataParallelOptions ddp = {};
  bool set_to_none = true;
  int accumulation_steps = 1;
  CommHook hook = {};
};

// The weights, buffers and random numbers after some steps; `interval` 0: without a verifier.
std::vector<at::Tensor> trained(const Context& context, const Case& each, std::int64_t interval,
                                std::int64_t steps) {
  torch::manual_seed(7U + static_cast<unsigned>(context.rank()));
  auto own_generator =
      torch::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(context.rank()));
  Net net;
  DistributedDataParallel ddp(net, each.ddp);
  if (each.hook) ddp->register_comm_hook(each.hook);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::optional<StepVerifier> verifier;
  if (interval > 0)
    verifier.emplace(ddp, StepVerifierOptions{.interval = interval,
                                              .all_ranks = true,
                                              .accumulation_steps = each.accumulation_steps,
                                              .optimizer = &optimizer,
                                              .generators = {own_generator}});
  const auto pass = [&](const data::Batch& batch) {
    const auto noise = torch::randn(batch.data.sizes(), own_generator) + torch::rand({1});
    torch::nn::functional::cross_entropy(ddp->forward(batch.data + 0.1 * noise), batch.target).backward();
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int part = 0; part < each.accumulation_steps; ++part) {
      std::optional<NoSync> no_sync;
      if (part + 1 < each.accumulation_steps) no_sync.emplace(ddp->no_sync());
      auto batch = batch_of(context.rank(), 3 * step + part);
      verifier ? verifier->run(batch, pass) : pass(batch);
    }
    clip_grad_norm_(ddp, 1);
    optimizer.step();
    optimizer.zero_grad(each.set_to_none);
  }
  if (verifier) {
    EXPECT_EQ(verifier->verified_passes(), steps / interval * each.accumulation_steps);
  }
  auto results = net->parameters();
  for (const auto& buffer : net->buffers()) results.push_back(buffer);
  results.push_back(torch::rand({4}));
  results.push_back(torch::rand({4}, own_generator));
  return results;
}

// Of three ranks, so that a division rounds.
const testing::Scenario unharmed("verify unharmed", [] {
  const auto context = init({.backend = "shm"});
  for (const auto& each : {Case{}, Case{.ddp = {.gradient_as_bucket_view = false}},
                           Case{.set_to_none = false}, Case{.accumulation_steps = 3},
                           Case{.ddp = {.gradient_as_bucket_view = false}, .accumulation_steps = 2},
                           Case{.ddp = {.broadcast_buffers = false, .bucket_cap_mb = 0.0001}},
                           Case{.ddp = {.find_unused_parameters = true}}, Case{.ddp = {.static_graph = true}},
                           Case{.ddp = {.batched_grad_copy = true, .lazy_bucket_allocation = true}},
                           Case{.hook = bf16_compress_hook}}) {
    const auto steps = std::max<std::int64_t>(6, rounds());
    EXPECT_TRUE(have_equal_bits(trained(context, each, 0, steps), trained(context, each, 1, steps)));
    EXPECT_TRUE(have_equal_bits(trained(context, each, 0, 6), trained(context, each, 3, 6)));
  }
});

TEST(StepVerifier, RaisesNoFalseAlarmAndChangesNothing) {
  testing::expect_all_passed(
      testing::run_ranks(unharmed, {.world_size = 3, .timeout = std::chrono::seconds(600)}));
}

const testing::Scenario refusals("verify refusals", [] {
  const auto context = init({.backend = "shm"});
  Net net;
  DistributedDataParallel ddp(net);
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier(ddp, {.interval = 0}); }),
              HasSubstr("StepVerifier: interval is 0; it must be 1 or more"));
  torch::nn::Linear other(2, 2);
  fully_shard(other);
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{other}; }),
              HasSubstr("not a DistributedDataParallel"));
  DistributedDataParallel synced(convert_sync_batchnorm(
      std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4))));
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{synced}; }), HasSubstr("is a SyncBatchNorm"));
  DistributedDataParallel ignoring(torch::nn::Linear(2, 2), {.params_and_buffers_to_ignore = {"bias"}});
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{ignoring}; }),
              HasSubstr("does not support params_and_buffers_to_ignore"));
  {
    const int threads = at::get_num_threads();
    at::set_num_threads(1 + context.rank());
    EXPECT_THAT(error_of<DesyncError>([&] { StepVerifier{ddp}; }),
                AllOf(HasSubstr("intra-op threads 1"), HasSubstr("OMP_NUM_THREADS")));
    at::set_num_threads(threads);
  }
  StepVerifier verifier(ddp, {.interval = 1, .all_ranks = true});
  auto batch = batch_of(context.rank(), 0);
  const auto train = [&](const data::Batch& each) {
    torch::nn::functional::cross_entropy(ddp->forward(each.data), each.target).backward();
  };
  EXPECT_THAT(error_of<ArgumentError>([&] {
                verifier.run(batch, [&](auto& each) {
                  train(each);
                  if (verifier.is_replaying()) all_reduce(torch::ones({1}));
                });
              }),
              HasSubstr("StepVerifier: the function calls other ranks"));
  EXPECT_THAT(error_of<ArgumentError>([&] {
                verifier.run(batch, [&](auto& each) {
                  train(each);
                  train(each);
                });
              }),
              HasSubstr("several backward passes that are reduced"));
  ddp->zero_grad();
  EXPECT_NO_THROW(verifier.run(batch, train));
  EXPECT_NO_THROW(verifier.run(batch, train));  // with the gradients of the first
  DistributedDataParallel averaging(torch::nn::Linear(2, 2));
  averaging->register_comm_hook(PostLocalSGD({.subgroup = context.group()}));
  EXPECT_THAT(error_of<ArgumentError>([&] { StepVerifier{averaging}; }),
              HasSubstr("does not support PostLocalSGD"));
  auto shared = std::make_shared<at::Tensor>(torch::ones({2, kInputs}));
  EXPECT_THAT(error_of<ArgumentError>(
                  [&] { verifier.run(shared, [&](auto& each) { ddp->forward(*each).sum().backward(); }); }),
              HasSubstr("cannot be replaced in a copy: they are behind a shared pointer"));
});

TEST(StepVerifier, RefusesWhatItCannotVerify) { testing::expect_all_passed(testing::run_ranks(refusals)); }

class Numbers {
 public:
  std::size_t size() const { return 64; }
  data::Batch get_batch(const at::Tensor& indices) const {
    return {(indices.to(at::kFloat).unsqueeze(1) + torch::arange(kInputs)).sin(),
            indices.remainder(kClasses)};
  }
};

std::vector<at::Tensor> trained_by_trainer(const TrainerOptions& options, const Faults& faults = {}) {
  torch::manual_seed(3U + static_cast<unsigned>(get_rank()));
  Net net;
  net->faults = faults;
  DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(ddp->parameters(), 1e-2);
  data::DataLoader loader(Numbers(), {.batch_size = 4, .shuffle = true});
  Trainer trainer(ddp, optimizer, options);
  trainer.fit(loader, [&](data::Batch& batch) {
    return torch::nn::functional::cross_entropy(ddp->forward(batch.data), batch.target);
  });
  auto results = net->parameters();
  for (const auto& buffer : net->buffers()) results.push_back(buffer);
  return results;
}

const testing::Scenario by_trainer("verify by trainer", [] {
  const auto context = init({.backend = "shm"});
  for (const int parts : {1, 2}) {
    TrainerOptions options{.epochs = 2, .accumulation_steps = parts, .max_grad_norm = 1};
    const auto expected = trained_by_trainer(options);
    options.verify_interval = 2;
    EXPECT_TRUE(have_equal_bits(trained_by_trainer(options), expected));
    try {
      trained_by_trainer(options, {.product = context.rank() == 1});
      ADD_FAILURE() << "no error";
    } catch (const VerificationError& error) {
      EXPECT_THAT(error.ranks(), ElementsAre(1));
      EXPECT_THAT(error.step(), AnyOf(2, 4));
    }
  }
});

TEST(StepVerifier, IsPartOfTheTrainer) {
  testing::expect_all_passed(testing::run_ranks(by_trainer, {.world_size = 3}));
}

}  // namespace
}  // namespace lockstep
