// SPDX-License-Identifier: BSD-3-Clause
// Training loops of tutorials whose modules change, or share parameters, while they are wrapped: the weights
// are those of one process on the whole batch, without a warning.
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/changed_modules.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int kSteps = 4;
constexpr std::int64_t kBatch = 4;  // of each rank

Sequential net_of(std::int64_t inputs, std::int64_t outputs) {
  Sequential net(Linear(inputs, 8), torch::nn::Tanh(), Linear(8, 8), torch::nn::Tanh(), Linear(8, outputs));
  net->to(torch::kDouble);
  return net;
}

// Rows of a step: all of them, or those of one rank.
Tensor rows_of(int step, int rank, std::int64_t columns) {
  const auto all =
      torch::arange(2 * kBatch * columns, torch::kDouble).add(7 * step).sin().view({-1, columns});
  return rank < 0 ? all : all.narrow(0, rank * kBatch, kBatch);
}

void expect_same(const torch::nn::Module& net, const torch::nn::Module& expected) {
  const auto wanted = expected.named_parameters();
  for (const auto& [name, parameter] : net.named_parameters().pairs())
    EXPECT_TRUE(parameter.allclose(wanted[name], 1e-9, 1e-11)) << name;
}

Tensor error_against(const Tensor& output, double label) {
  return torch::binary_cross_entropy_with_logits(output, torch::full_like(output, label));
}

// PyTorch's DCGAN tutorial. `discriminate`: with gradients of the generator. `rank`: -1 for all rows.
template <typename Generate, typename Discriminate>
void train_gan(int rank, bool freezes, torch::nn::Module& d, torch::nn::Module& g, const Generate& generate,
               const Discriminate& discriminate, const Discriminate& discriminate_fake) {
  optim::FusedSGD of_d(d.parameters(), optim::FusedSGDOptions(0.1)),
      of_g(g.parameters(), optim::FusedSGDOptions(0.1));
  for (int step = 0; step < kSteps; ++step) {
    if (freezes) set_trained(d, true);
    of_d.zero_grad(/*set_to_none=*/step % 2 == 0);
    error_against(discriminate(rows_of(step, rank, 3)), 1).backward();
    const auto fake = generate(rows_of(step + 100, rank, 2));
    error_against(discriminate(fake.detach()), 0).backward();
    of_d.step();
    if (freezes) set_trained(d, false);  // as CycleGAN does
    of_g.zero_grad();
    error_against(discriminate_fake(fake), 1).backward();
    of_g.step();
    EXPECT_EQ(error_of<Error>([&] { state_dict(d); }), "") << "no step has used its gradients";
  }
}

void expect_gan(bool freezes, bool bare) {
  const auto context = init();
  using Function = std::function<Tensor(const Tensor&)>;
  torch::manual_seed(1);
  auto d = net_of(3, 1), g = net_of(2, 3);
  DistributedDataParallel d_ddp(d), g_ddp(g);
  const Function wrapped = [&](const Tensor& x) { return d_ddp->forward(x); };
  const Function plain_d = [&](const Tensor& x) { return d->forward(x); };
  train_gan(
      context.rank(), freezes, *d, *g, [&](const Tensor& z) { return g_ddp->forward(z); }, wrapped,
      bare ? plain_d : wrapped);
  EXPECT_TRUE(bare || d_ddp->has_averaged_gradients());
  EXPECT_TRUE(g_ddp->has_averaged_gradients());
  torch::manual_seed(1);
  auto d_alone = net_of(3, 1), g_alone = net_of(2, 3);
  const Function forward = [&](const Tensor& x) { return d_alone->forward(x); };
  train_gan(
      -1, freezes, *d_alone, *g_alone, [&](const Tensor& z) { return g_alone->forward(z); }, forward,
      forward);
  expect_same(*d, *d_alone);
  expect_same(*g, *g_alone);
}

const Scenario gan("two wrappers of a GAN", [] { expect_gan(false, false); });
const Scenario frozen_gan("two wrappers of a GAN that freezes its discriminator",
                          [] { expect_gan(true, false); });
const Scenario bare_gan("a generator's step with the bare discriminator", [] { expect_gan(false, true); });
const Scenario bare_frozen_gan("a generator's step with the bare and frozen discriminator",
                               [] { expect_gan(true, true); });

void expect_without_warning(const Scenario& scenario) {
  const auto results = run_ranks(scenario);
  expect_all_passed(results);
  for (const auto& rank : results) EXPECT_THAT(rank.err, Not(HasSubstr("not averaged")));
}

TEST(WrappedTraining, AGanHasTwoWrappers) { expect_without_warning(gan); }
TEST(WrappedTraining, AGanMayFreezeItsDiscriminator) {
  expect_without_warning(frozen_gan);
  expect_without_warning(bare_frozen_gan);
}
// Its gradients of the generator's step are dropped before the discriminator's.
TEST(WrappedTraining, AGeneratorMayUseTheBareDiscriminator) { expect_without_warning(bare_gan); }

const Scenario bare_head("a bare head behind a wrapped encoder", [] {
  const auto context = init();
  auto encoder = net_of(3, 4), head = net_of(4, 1);
  DistributedDataParallel encoder_ddp(encoder), head_ddp(head);
  optim::FusedSGD ours(head->parameters(), optim::FusedSGDOptions(0.1));
  torch::optim::SGD plain(head->parameters(), 0.1);
  const auto backward = [&] {
    head->forward(encoder_ddp->forward(rows_of(0, context.rank(), 3))).sum().backward();
  };
  const auto past = HasSubstr("not averaged");
  backward();
  EXPECT_THAT(error_of<Error>([&] { ours.step(); }), past);
  EXPECT_THAT(error_of<Error>([&] { clip_grad_norm_(head_ddp, 1); }), past);
  EXPECT_EQ(error_of<Error>([&] { state_dict(*head); }), "");
  plain.step();
  plain.zero_grad();
  EXPECT_THAT(error_of<Error>([&] { ours.step(); }), past);
  EXPECT_THAT(error_of<Error>([&] { state_dict(*head); }), past);
  backward();
});
TEST(WrappedTraining, ABareHeadBehindAWrappedEncoderIsNoticed) {
  const auto results = run_ranks(bare_head);
  expect_all_passed(results);
  for (const auto& rank : results)
    EXPECT_THAT(rank.err, HasSubstr("not averaged")) << "a plain optimizer has used its gradients";
}

// Gradual unfreezing in the middle of an accumulation.
void train_unfreezing(Sequential& net, DistributedDataParallel<Sequential>* ddp, int rank) {
  optim::FusedSGD optimizer(net->parameters(), optim::FusedSGDOptions(0.1));
  const auto add = [&](int number, bool syncs) {
    std::optional<NoSync> alone;
    if (ddp != nullptr && !syncs) alone.emplace((*ddp)->no_sync());
    const auto rows = rows_of(number, rank, 3);
    (ddp != nullptr ? (*ddp)->forward(rows) : net->forward(rows)).pow(2).mean().backward();
  };
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    add(3 * step, false);
    if (step == 1) set_trained(*net[2], true);
    if (step == 2) set_trained(*net[0], true);
    if (step == 3) set_trained(*net[2], false);
    add(3 * step + 1, false);
    add(3 * step + 2, true);
    if (ddp != nullptr) clip_grad_norm_(*ddp, 1e9);
    optimizer.step();
  }
}

const Scenario unfreezing("unfreezing within an accumulation", [] {
  const auto context = init();
  const auto frozen_net = [] {
    torch::manual_seed(1);
    auto net = net_of(3, 1);
    set_trained(*net[0], false);
    set_trained(*net[2], false);
    return net;
  };
  auto net = frozen_net(), alone = frozen_net();
  DistributedDataParallel ddp(net);
  train_unfreezing(net, &ddp, context.rank());
  train_unfreezing(alone, nullptr, -1);
  expect_same(*net, *alone);
});
TEST(WrappedTraining, LayersAreUnfrozenWithinAnAccumulation) { expect_without_warning(unfreezing); }

// A backbone with a head; another one may share the backbone.
struct HeadedImpl : torch::nn::Module {
  explicit HeadedImpl(Sequential shared)
      : backbone(register_module("backbone", std::move(shared))),
        head(register_module("head", net_of(4, 1))) {}
  Tensor forward(const Tensor& x) { return head->forward(backbone->forward(x)); }
  Sequential backbone, head;
};
TORCH_MODULE(Headed);

std::pair<Headed, Headed> two_heads() {
  torch::manual_seed(1);
  auto backbone = net_of(3, 4);
  Headed first(backbone), second(backbone);
  return {first, second};
}

template <typename First, typename Second>
void add_gradients(First& first, Second& second, int rank, int step) {
  first->forward(rows_of(step, rank, 3)).pow(2).mean().backward();
  second->forward(rows_of(step + 50, rank, 3)).pow(2).mean().backward();
}

std::vector<Tensor> parameters_of(const Headed& first, const Headed& second) {
  auto parameters = first->parameters();
  for (const auto& each : second->head->parameters()) parameters.push_back(each);
  return parameters;
}

const Scenario shared("a module in two wrappers", [] {
  const auto context = init();
  auto [first, second] = two_heads();
  auto [first_alone, second_alone] = two_heads();
  DistributedDataParallel one(first), other(second), again(first);
  const optim::FusedSGDOptions rate(0.1);
  optim::FusedSGD optimizer(parameters_of(first, second), rate),
      alone(parameters_of(first_alone, second_alone), rate);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    add_gradients(one, other, context.rank(), step);
    EXPECT_TRUE(one->has_averaged_gradients()) << step;
    EXPECT_TRUE(other->has_averaged_gradients()) << step;
    EXPECT_TRUE(again->has_averaged_gradients()) << step;
    clip_grad_norm_(one, 1e9);
    optimizer.step();
    alone.zero_grad();
    add_gradients(first_alone, second_alone, -1, step);
    alone.step();
  }
  expect_same(*first, *first_alone);
  expect_same(*second, *second_alone);
  {
    const auto local = again->no_sync();
    again->forward(rows_of(0, context.rank(), 3)).sum().backward();
  }
  EXPECT_FALSE(one->has_averaged_gradients());
  EXPECT_FALSE(again->has_averaged_gradients());
  EXPECT_EQ(error_of<Error>([&] { state_dict(*first); }), "") << "no_sync() of one wrapper covers the others";
});
TEST(WrappedTraining, WrappersMayShareParameters) { expect_without_warning(shared); }

// Weight normalization: the layer computes its weight in each forward.
struct NormalizedImpl : torch::nn::LinearImpl {
  NormalizedImpl() : LinearImpl(3, 2) {
    weight.set_requires_grad(false);
    scale = register_parameter("scale", torch::ones({2, 1}));
    direction = register_parameter("direction", weight.detach().clone());
  }
  Tensor forward(const Tensor& x) {
    weight = scale * direction / direction.norm(2, {1}, true);
    return LinearImpl::forward(x.to(torch::kFloat));
  }
  Tensor scale, direction;
};
TORCH_MODULE(Normalized);

const Scenario normalized("a layer that computes its weight", [] {
  const auto context = init();
  const auto made = [] {
    torch::manual_seed(1);
    return Normalized();
  };
  auto net = made(), alone = made();
  DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.1), reference(alone->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    ddp->forward(rows_of(step, context.rank(), 3)).pow(2).mean().backward();
    optimizer.step();
    reference.zero_grad();
    alone->forward(rows_of(step, -1, 3)).pow(2).mean().backward();
    reference.step();
    const torch::NoGradGuard evaluation;
    net->eval();
    ddp->forward(rows_of(step, 0, 3));
    net->train();
  }
  EXPECT_TRUE(net->scale.allclose(alone->scale) && net->direction.allclose(alone->direction));
});
TEST(WrappedTraining, ALayerMayComputeItsWeight) { expect_without_warning(normalized); }

const Scenario past_both("a forward past two wrappers", [] {
  const auto context = init();
  auto net = net_of(3, 1);
  DistributedDataParallel before(net), ddp(net);  // wrapped anew, while the first wrapper lives
  net->forward(rows_of(0, context.rank(), 3)).sum().backward();
  EXPECT_FALSE(ddp->has_averaged_gradients());
  EXPECT_THAT(error_of<Error>([&] { state_dict(*net); }), HasSubstr("not averaged"));
  ddp->forward(rows_of(0, context.rank(), 3)).sum().backward();
  EXPECT_TRUE(ddp->has_averaged_gradients());
  EXPECT_EQ(error_of<Error>([&] { state_dict(*net); }), "");
});
TEST(WrappedTraining, AForwardPastTwoWrappersIsNoticed) { expect_all_passed(run_ranks(past_both)); }

}  // namespace
}  // namespace lockstep::testing
