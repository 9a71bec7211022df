// SPDX-License-Identifier: BSD-3-Clause
// ZeroRedundancyOptimizer: PyTorch's partition; the bits of the same optimizer with all states on every rank.
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/data/loader.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/optim/fused.h>
#include <lockstep/optim/lr_scheduler.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/training/trainer.h>

#include "support/error_of.h"
#include "support/python.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

std::string draw_groups(int number) {
  torch::manual_seed(static_cast<std::uint64_t>(number));
  std::string text;
  for (int group = 0; group <= number % 3; ++group) {
    text += group == 0 ? "" : "/";
    const auto sizes = torch::randint(1, number % 2 == 0 ? 5 : 1000, {1 + number});
    for (std::int64_t i = 0; i < sizes.numel(); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ",", sizes[i].item<float>());
  }
  return text;
}

std::vector<OptimizerParamGroup> groups_of(const std::string& text) {
  std::vector<OptimizerParamGroup> groups;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, '/');) {
    std::vector<Tensor> parameters;
    std::istringstream counts(part);
    for (std::string count; std::getline(counts, count, ',');)
      parameters.push_back(torch::zeros({std::stoi(count)}).requires_grad_());
    groups.emplace_back(std::move(parameters));
  }
  return groups;
}

TEST(ZeroRedundancyParity, PartitionsTheParametersLikePyTorch) {
  std::vector<std::string> cases;
  std::string ours;
  for (const int world_size : {2, 3, 5}) {
    const auto context = init({.backend = "fake", .world_size = world_size, .rank = world_size - 1});
    for (int number = 0; number < 12; ++number) {
      const auto text = draw_groups(number);
      cases.push_back(fmt::format("{} {}", world_size, text));
      const auto groups = groups_of(text);
      ZeroRedundancyOptimizer<SGD> optimizer(std::vector{groups.front()}, SGDOptions(0.1));
      EXPECT_EQ(optimizer.owners().size(), groups.front().params().size());
      for (std::size_t i = 1; i < groups.size(); ++i) optimizer.add_param_group(groups[i]);
      ours += fmt::format("{}\n", fmt::join(optimizer.owners(), " "));
    }
  }
  EXPECT_EQ(ours, run_python("parity/zero_partition.py", {.args = cases}));
}

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(6, 13));
    second = register_module("second", torch::nn::Linear(13, 7));
    third = register_module("third", torch::nn::Linear(7, 7));
    last = register_module("last", torch::nn::Linear(torch::nn::LinearOptions(7, 3).bias(false)));
    second->weight.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) { return last(third(second(first(x).tanh()).tanh())); }

  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, last{nullptr};
};
TORCH_MODULE(SmallNet);

std::vector<OptimizerParamGroup> two_groups(const SmallNet& net) {
  const auto all = net->parameters();
  return {std::vector(all.begin(), all.end() - 2), std::vector(all.end() - 2, all.end())};
}

// A net with its optimizer and scheduler.
template <typename Optimizer>
struct Training {
  template <typename Options>
  explicit Training(const Options& options) : optimizer(two_groups(net), options) {}

  void step(int number, int rank) {
    torch::manual_seed(static_cast<std::uint64_t>(100 * number + rank));
    const auto x = torch::randn({5, 6});
    const auto loss_of = [&] {
      optimizer.zero_grad();
      auto loss = ddp->forward(x).pow(2).sum();
      loss.backward();
      return loss;
    };
    if (number % 2 == 0) {
      loss_of();
      optimizer.step();
    } else {
      EXPECT_GT(optimizer.step(loss_of).template item<float>(), 0);
    }
    scheduler.step();
  }

  SmallNet net;
  DistributedDataParallel<SmallNet> ddp{net};
  Optimizer optimizer;
  optim::StepLR scheduler{optimizer, 2, 0.5};
};

void expect_same(const SmallNet& ours, const SmallNet& expected) {
  const auto a = ours->parameters(), b = expected->parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i;
    EXPECT_TRUE(!b[i].requires_grad() || a[i].grad().equal(b[i].grad())) << "gradient " << i;
  }
}

template <typename Base, typename Options>
void compare(const Context& context, const char* name, const Options& options, bool shares = false) {
  SCOPED_TRACE(name);
  const int rank = context.rank();
  Training<Base> plain(options);
  Training<ZeroRedundancyOptimizer<Base>> zero(options);
  if (shares) zero.optimizer.share_parameters();
  for (int number = 0; number < 4; ++number) {
    plain.step(number, rank);
    zero.step(number, rank);
    expect_same(zero.net, plain.net);
  }
  std::size_t own = 0;
  const auto parameters = zero.net->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool has_state = zero.optimizer.state().count(parameters[i].unsafeGetTensorImpl()) > 0;
    EXPECT_TRUE(!has_state || zero.optimizer.owners()[i] == rank) << i;
    own += has_state ? 1 : 0;
  }
  EXPECT_LT(own, parameters.size() - 1);
  EXPECT_THAT(error_of<ArgumentError>([&] { state_dict(zero.optimizer); }),
              HasSubstr(fmt::format(
                  "call consolidate_state_dict({0}) on all ranks before state_dict() on rank {0}", rank)));
  zero.optimizer.consolidate_state_dict(1);
  if (rank == 1) {
    EXPECT_TRUE(equal(state_dict(zero.optimizer), state_dict(plain.optimizer)));
  } else {
    EXPECT_THROW(state_dict(zero.optimizer), ArgumentError);
  }
  // A new optimizer continues from the state of one process, and the old one after consolidation.
  Training<ZeroRedundancyOptimizer<Base>> resumed(options);
  if (shares) resumed.optimizer.share_parameters();
  load_state_dict(resumed.optimizer, state_dict(plain.optimizer));
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) resumed.net->parameters()[i].copy_(parameters[i]);
  }
  resumed.scheduler.load_state_dict(plain.scheduler.state_dict());
  for (int number = 4; number < 6; ++number) {
    plain.step(number, rank);
    zero.step(number, rank);
    resumed.step(number, rank);
    expect_same(zero.net, plain.net);
    expect_same(resumed.net, plain.net);
  }
  for (const auto& parameter : parameters)
    own -= zero.optimizer.state().count(parameter.unsafeGetTensorImpl());
  EXPECT_EQ(own, 0U);
}

const Scenario zero_bits("zero bits", [] {
  const auto context = init({.backend = std::getenv("ZERO_BACKEND")});
  compare<SGD>(context, "SGD", SGDOptions(0.05).momentum(0.9));
  compare<AdamW>(context, "AdamW", torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  compare<optim::FusedAdamW>(context, "FusedAdamW", optim::FusedAdamWOptions(0.01));
  compare<optim::NAdam>(context, "NAdam", optim::NAdamOptions{.lr = 0.01});
});

TEST(ZeroRedundancy, TheBitsOfTheSameOptimizerOnEveryRank) {
  // Gloo's order of additions at three ranks depends on the place in a bucket, which changes after the first
  // step.
  for (const auto& [backend, ranks] : {std::pair{"shm", 2}, std::pair{"shm", 4}, std::pair{"gloo", 2}})
    expect_all_passed(run_ranks(zero_bits, {.world_size = ranks, .env = {{"ZERO_BACKEND", backend}}}));
}

const Scenario zero_shared("zero shared parameters", [] {
  const auto context = init({.backend = "shm"});
  compare<SGD>(context, "SGD", SGDOptions(0.05).momentum(0.9), true);
  compare<optim::FusedAdamW>(context, "FusedAdamW", optim::FusedAdamWOptions(0.01), true);
});
TEST(ZeroRedundancy, SharedParametersHaveTheSameBits) {
  for (const int ranks : {2, 4}) expect_all_passed(run_ranks(zero_shared, {.world_size = ranks}));
}

const Scenario zero_converted("zero converted", [] {
  const auto context = init({.backend = "shm"});
  const std::vector parameters{torch::ones({3}).requires_grad_(), torch::ones({2}).requires_grad_()};
  ZeroRedundancyOptimizer<SGD> optimizer(parameters, SGDOptions(0.1).momentum(0.9));
  for (const auto& parameter : parameters) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  for (const auto& parameter : parameters) parameter.set_data(parameter.detach().to(torch::kDouble));
  optimizer.consolidate_state_dict();
  if (context.rank() != 0) return;
  const auto dict = state_dict(optimizer);
  EXPECT_EQ(dict.at("state").as_dict().size(), parameters.size());
  for (const auto& [index, state] : dict.at("state").as_dict())
    EXPECT_EQ(state["momentum_buffer"].as_tensor().scalar_type(), torch::kFloat) << repr(index);
});
TEST(ZeroRedundancy, ConsolidatedStatesKeepTheirDtypes) { expect_all_passed(run_ranks(zero_converted)); }

struct Foreign : torch::optim::Optimizer {
  Foreign(std::vector<Tensor> parameters, SGDOptions options)
      : Optimizer(std::move(parameters), std::make_unique<SGDOptions>(std::move(options))) {}
  Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

const Scenario zero_foreign("zero foreign", [] {
  const auto context = init({.backend = "shm"});
  ZeroRedundancyOptimizer<Foreign> optimizer({torch::ones({3}).requires_grad_()}, SGDOptions(0.1));
  EXPECT_THAT(error_of<ArgumentError>([&] { optimizer.consolidate_state_dict(); }), HasSubstr("Foreign"));
});
TEST(ZeroRedundancy, AnOptimizerWithoutStateDictsIsAnErrorOnAllRanks) {
  expect_all_passed(run_ranks(zero_foreign));
}

const Scenario zero_differs("zero differs", [] {
  const auto context = init({.backend = "shm"});
  const auto parameter = torch::zeros({2 + context.rank()}).requires_grad_();
  EXPECT_THAT(error_of<DesyncError>([&] { ZeroRedundancyOptimizer<SGD>({parameter}, SGDOptions(0.1)); }),
              AllOf(HasSubstr("ZeroRedundancyOptimizer at zero_redundancy_test.cpp:"), HasSubstr("Float[2]"),
                    HasSubstr("Float[3]")));
});
TEST(ZeroRedundancy, DifferentParametersAreAnErrorOnAllRanks) { expect_all_passed(run_ranks(zero_differs)); }

// `parameters` with the gradients of step `number`.
void set_gradients(const std::vector<Tensor>& parameters, int number) {
  torch::manual_seed(static_cast<std::uint64_t>(number));
  for (auto parameter : parameters) parameter.mutable_grad() = torch::randn(parameter.sizes());
}

template <typename Base, typename Options>
void compare_odd(const Context& context, const Options& options) {
  const auto make = [] {
    torch::manual_seed(5);
    const auto tied = torch::randn({3, 2}).requires_grad_();
    return std::vector<Tensor>{tied, torch::randn({4}).requires_grad_(), tied,
                               torch::zeros({0}).requires_grad_()};
  };
  const auto expected = make(), ours = make();
  Base plain(expected, options);
  ZeroRedundancyOptimizer<Base> zero(ours, options);
  // A fused optimizer has a tied parameter once.
  EXPECT_TRUE(zero.owners().size() == 3 || zero.owners()[0] == zero.owners()[2]);
  for (int number = 0; number < 4; ++number) {
    for (const auto* parameters : {&expected, &ours}) {
      set_gradients(*parameters, number);
      // Frozen, with the gradient that it had.
      if (number == 2) parameters->at(1).set_requires_grad(false);
    }
    plain.step();
    zero.step();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(ours[i].equal(expected[i])) << "parameter " << i << " after step " << number;
      EXPECT_TRUE(ours[i].grad().equal(expected[i].grad())) << "gradient " << i;
    }
  }
  zero.consolidate_state_dict();
  if (context.is_main_process()) {
    EXPECT_TRUE(equal(state_dict(zero), state_dict(plain)));
  }
}

const Scenario zero_odd("zero odd parameters", [] {
  const auto context = init({.backend = "shm"});
  compare_odd<SGD>(context, SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
  compare_odd<optim::FusedAdamW>(context, optim::FusedAdamWOptions(0.01));
});
TEST(ZeroRedundancy, TiedFrozenAndEmptyParametersAndRanksWithoutAny) {
  expect_all_passed(run_ranks(zero_odd, {.world_size = 4}));
}

struct Numbers {
  struct Batch {
    Tensor inputs;
  };
  std::size_t size() const { return 48; }
  Batch get_batch(const Tensor& indices) const {
    return {(indices.unsqueeze(1) * torch::arange(1, 5)).sin()};
  }
};

// Float16 scales the loss, and its first steps are skipped.
template <typename Optimizer>
struct Program {
  Program(std::int64_t max_steps, const std::string& folder)
      : trainer(ddp, optimizer,
                {.epochs = 2,
                 .max_steps = max_steps,
                 .autocast = torch::kHalf,
                 .checkpoints = folder,
                 .checkpoint_interval = folder.empty() ? 0 : 1,
                 .resume = !folder.empty()}) {
    trainer.step_scheduler(scheduler);
    trainer.fit(loader, [&](auto& batch) { return ddp->forward(batch.inputs).pow(2).sum() * 500; });
  }

  torch::nn::Linear net = [] {
    torch::manual_seed(4);
    return torch::nn::Linear(4, 3);
  }();
  DistributedDataParallel<torch::nn::Linear> ddp{net};
  Optimizer optimizer{ddp->parameters(), typename Optimizer::Settings(0.01)};
  optim::StepLR scheduler{optimizer, 3, 0.5};
  Trainer trainer;
  data::DataLoader<Numbers> loader = data::DataLoader(Numbers(), {.batch_size = 4});
};

template <typename Base, typename Options>
struct Plain : Base {
  using Settings = Options;
  using Base::Base;
};
template <typename Base, typename Options>
struct Zero : ZeroRedundancyOptimizer<Base> {
  using Settings = Options;
  using ZeroRedundancyOptimizer<Base>::ZeroRedundancyOptimizer;
};

template <typename Base, typename Options>
void compare_trained(const std::string& folder) {
  constexpr std::int64_t kSteps = 9;
  Program<Plain<Base, Options>> at_once(kSteps, "");
  EXPECT_LT(at_once.trainer.state().state_dict().at("scaler")["scale"].as_double(), 65536);
  { const Program<Zero<Base, Options>> first(5, folder); }
  { const Program<Plain<Base, Options>> between(7, folder); }
  const Program<Zero<Base, Options>> last(kSteps, folder);
  EXPECT_TRUE(last.net->weight.equal(at_once.net->weight));
  EXPECT_TRUE(last.net->bias.equal(at_once.net->bias));
}

const Scenario zero_trained("zero trained", [] {
  const auto context = init({.backend = "shm"});
  const std::string folder = std::getenv("ZERO_FOLDER");
  compare_trained<AdamW, torch::optim::AdamWOptions>(folder + "/plain");
  compare_trained<optim::FusedAdam, optim::FusedAdamOptions>(folder + "/fused");
});
TEST(ZeroRedundancy, ATrainerSavesAndResumesIt) {
  const TempFolder folder;
  expect_all_passed(run_ranks(zero_trained, {.env = {{"ZERO_FOLDER", folder.path().string()}}}));
}

TEST(ZeroRedundancy, ErrorsNameTheParameterAndTheLine) {
  using Zero = ZeroRedundancyOptimizer<SGD>;
  const auto weight = torch::zeros({4, 2}).requires_grad_();
  EXPECT_THAT(error_of([&] { Zero({weight}, SGDOptions(0.1)); }), HasSubstr("lockstep::init() first"));
  const auto context = init({.backend = "fake", .world_size = 2, .rank = 0});
  EXPECT_THAT(error_of<ArgumentError>([&] { Zero(std::vector<Tensor>{}, SGDOptions(0.1)); }),
              HasSubstr("there are no parameters"));
  // LibTorch itself refuses what is not a leaf.
  EXPECT_ANY_THROW(Zero({weight, weight[0]}, SGDOptions(0.1)));
  const auto sparse = torch::eye(2).to_sparse().requires_grad_();
  EXPECT_THAT(error_of<ArgumentError>([&] {
                Zero({weight, sparse}, SGDOptions(0.1));
              }),
              AllOf(HasSubstr("at zero_redundancy_test.cpp:"), HasSubstr("parameter 1 of group 0"),
                    HasSubstr("not dense")));
}

}  // namespace
}  // namespace lockstep::testing
