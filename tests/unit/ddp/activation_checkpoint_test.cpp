// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return drop->forward(torch::tanh(linear->forward(x)));
  }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(6, 6))};
  torch::nn::Dropout drop{register_module("drop", torch::nn::Dropout(0.5))};
  int calls = 0;
};
TORCH_MODULE(Block);

struct Outcome {
  at::Tensor loss;
  at::Tensor input;
  at::Tensor weight;
};

// Two uses of one block, with dropout.
template <typename Use>
Outcome run(Block& block, const Use& use) {
  torch::manual_seed(3);
  block->zero_grad();
  const auto x = torch::linspace(0, 1, 12).view({2, 6}).requires_grad_();
  const auto loss = use(use(x * 2)).sum();
  loss.backward();
  return {loss.detach(), x.grad(), block->linear->weight.grad().clone()};
}

TEST(Checkpoint, GivesTheSameBitsWithDropoutAndRunsTheFunctionAgain) {
  Block block;
  const auto plain = run(block, [&](const at::Tensor& x) { return block->forward(x); });
  for (const bool reentrant : {false, true}) {
    block->calls = 0;
    const auto again =
        run(block, [&](const at::Tensor& x) { return checkpoint({.use_reentrant = reentrant}, block, x); });
    EXPECT_TRUE(torch::equal(plain.loss, again.loss)) << reentrant;
    EXPECT_TRUE(torch::equal(plain.input, again.input)) << reentrant;
    EXPECT_TRUE(torch::allclose(plain.weight, again.weight, 1e-6)) << reentrant;
    EXPECT_EQ(block->calls, 4) << reentrant;
  }
}

TEST(Checkpoint, LeavesTheGeneratorUnchanged) {
  Block block;
  const auto draw_after = [&](const auto& use) {
    run(block, use);
    return torch::rand({1});
  };
  const auto plain = draw_after([&](const at::Tensor& x) { return block->forward(x); });
  EXPECT_TRUE(torch::equal(plain, draw_after([&](const at::Tensor& x) { return checkpoint(block, x); })));
}

TEST(Checkpoint, AcceptsSeveralArgumentsAndResults) {
  const auto x = torch::ones({3}).requires_grad_();
  const auto y = torch::full({3}, 2.0).requires_grad_();
  const auto both = [](const at::Tensor& a, const std::vector<at::Tensor>& b, double factor) {
    return std::pair(a * b[0] * factor, b[0].detach());
  };
  auto [product, fixed] = checkpoint(both, x, std::vector<at::Tensor>{y}, 4.0);
  EXPECT_FALSE(fixed.requires_grad());
  product.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 8.0)));
  EXPECT_TRUE(torch::equal(y.grad(), torch::full({3}, 4.0)));
}

TEST(Checkpoint, NonReentrantInputsNeedNoGradient) {
  Block block;
  checkpoint(block, torch::ones({1, 6})).sum().backward();
  EXPECT_TRUE(block->linear->weight.grad().defined());
  EXPECT_THAT(
      [&] {
        checkpoint({.use_reentrant = true}, block, torch::ones({1, 6}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("use_reentrant")));
}

TEST(Checkpoint, KeepsNoActivations) {
  const auto x = torch::ones({4}).requires_grad_();
  c10::weak_intrusive_ptr<c10::TensorImpl> inner(x.getIntrusivePtr());
  const auto y = checkpoint(
      [&](const at::Tensor& a) {
        const auto activation = a.exp();
        inner = c10::weak_intrusive_ptr<c10::TensorImpl>(activation.getIntrusivePtr());
        return activation * activation;
      },
      x);
  EXPECT_TRUE(inner.expired());
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), 2 * (2 * x).exp()));
}

TEST(Checkpoint, RejectsAnInputThatWasChangedInPlace) {
  const auto x = torch::ones({4}).requires_grad_();
  auto h = x * 1;
  const auto y = checkpoint([](const at::Tensor& a) { return a.exp(); }, h);
  {
    const torch::NoGradGuard no_grad;
    h.add_(1);
  }
  EXPECT_THAT([&] { y.sum().backward(); }, ThrowsMessage<Error>(HasSubstr("in place")));
}

TEST(Checkpoint, RejectsSilentlyWrongUses) {
  const auto x = torch::ones({4}).requires_grad_();
  const auto square = [](const at::Tensor& a) { return a * a; };
  EXPECT_THAT([&] { torch::autograd::grad({checkpoint({.use_reentrant = true}, square, x).sum()}, {x}); },
              ThrowsMessage<Error>(HasSubstr("only backward()")));
  EXPECT_THAT([&] { checkpoint(square, x).sum().backward({}, true, /*create_graph=*/true); },
              ThrowsMessage<Error>(HasSubstr("create_graph")));
  EXPECT_TRUE(torch::equal(torch::autograd::grad({checkpoint(square, x).sum()}, {x})[0], 2 * x));
}

TEST(Checkpoint, WithoutGradientsItIsAPlainCall) {
  const torch::NoGradGuard no_grad;
  Block block;
  EXPECT_FALSE(checkpoint(block, torch::ones({1, 6})).requires_grad());
  EXPECT_EQ(block->calls, 1);
}

struct TwiceImpl : torch::nn::Module {
  explicit TwiceImpl(bool reentrant) : reentrant_(reentrant) {}
  at::Tensor forward(at::Tensor x) {
    x = first->forward(x);
    for (int i = 0; i < 2; ++i) x = checkpoint({.use_reentrant = reentrant_}, block, x);
    return x;
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 6))};
  Block block{register_module("block", Block())};
  bool reentrant_;
};
TORCH_MODULE(Twice);

TEST(Checkpoint, ABlockUsedTwiceNeedsAStaticGraphWhenReentrant) {
  const testing::FakeGroup fake;
  const auto x = torch::ones({1, 6});
  DistributedDataParallel plain(Twice(false), {.process_group = fake.group});
  for (int step = 0; step < 3; ++step) plain->forward(x).sum().backward();
  DistributedDataParallel reentrant(Twice(true), {.process_group = fake.group});
  EXPECT_THAT([&] { reentrant->forward(x).sum().backward(); },
              ThrowsMessage<Error>(HasSubstr("static_graph")));
  DistributedDataParallel fixed(Twice(true), {.process_group = fake.group, .static_graph = true});
  for (int step = 0; step < 3; ++step) fixed->forward(x).sum().backward();
}

}  // namespace
}  // namespace lockstep
