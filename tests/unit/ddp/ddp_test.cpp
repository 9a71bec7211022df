// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep::ddp_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct TwoHeadsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool both = true) {
    const auto hidden = body->forward(x);
    return both ? left->forward(hidden) + right->forward(hidden) : left->forward(hidden);
  }
  torch::nn::Linear body{register_module("body", torch::nn::Linear(3, 3))};
  torch::nn::Linear left{register_module("left", torch::nn::Linear(3, 2))};
  torch::nn::Linear right{register_module("right", torch::nn::Linear(3, 2))};
};
TORCH_MODULE(TwoHeads);

// One weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    weight = register_parameter("weight", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::nn::functional::linear(torch::relu(first->forward(x)), weight);
  }
  torch::nn::Linear first{nullptr};
  at::Tensor weight;
};
TORCH_MODULE(Tied);

std::vector<std::string> names_of(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  return tensors.keys();
}

TEST(DistributedDataParallel, NamesCarryModule) {
  const testing::FakeGroup fake;
  torch::nn::Linear net(2, 2);
  const DistributedDataParallel ddp(net, {.process_group = fake.group});
  EXPECT_THAT(names_of(ddp->named_parameters()), ElementsAre("module.weight", "module.bias"));
  EXPECT_EQ(ddp->module(), net.ptr());
}

TEST(DistributedDataParallel, AcceptsASharedPointer) {
  const testing::FakeGroup fake;
  const auto net = std::make_shared<TwoHeadsImpl>();
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  EXPECT_EQ(ddp->forward(torch::ones({1, 3})).sizes(), (std::vector<std::int64_t>{1, 2}));
}

TEST(DistributedDataParallel, ASharedWeightIsOneParameter) {
  const testing::FakeGroup fake;
  Tied net;
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  EXPECT_EQ(net->parameters().size(), 2U) << "LibTorch itself repeats it";
  EXPECT_EQ(ddp->parameters().size(), 1U);
  EXPECT_EQ(ddp->buckets().front().parameters.size(), 1U);
  ddp->forward(torch::randn({4, 3})).sum().backward();
  EXPECT_EQ(fake.all_reduces(), 1);
}

TEST(DistributedDataParallel, GradientsAreDividedAndInTheBucket) {
  testing::FakeGroup fake(3);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  ddp->forward(torch::ones({1, 4})).sum().backward();
  EXPECT_TRUE(net->weight.grad().is_alias_of(net->bias.grad()));
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 4}, 1.0F * (1.0 / 3))));
  EXPECT_FALSE(net->weight.grad().is_view());
}

TEST(DistributedDataParallel, GradientsKeepTheirOwnMemoryOnRequest) {
  testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group, .gradient_as_bucket_view = false});
  ddp->forward(torch::ones({1, 4})).sum().backward();
  EXPECT_FALSE(net->weight.grad().is_alias_of(net->bias.grad()));
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 4}, 0.5F)));
}

TEST(DistributedDataParallel, ZeroGradInBothForms) {
  for (const bool set_to_none : {true, false}) {
    testing::FakeGroup fake(2);
    torch::nn::Linear net(4, 1);
    DistributedDataParallel ddp(net, {.process_group = fake.group});
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad(set_to_none);
      ddp->forward(torch::ones({1, 4})).sum().backward();
      EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 4}, 0.5F)))
          << set_to_none << " step " << step;
      optimizer.step();
    }
  }
}

TEST(DistributedDataParallel, AnUnusedParameterIsNamedAtTheNextForward) {
  const testing::FakeGroup fake;
  TwoHeads net;
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto x = torch::ones({1, 3});
  ddp->forward(x, false).sum().backward();
  EXPECT_THAT([&] { ddp->forward(x); },
              ThrowsMessage<Error>(AllOf(HasSubstr("right.weight, right.bias"), HasSubstr("rank 0 of 2"),
                                         Not(HasSubstr("left.weight")))));
}

TEST(DistributedDataParallel, WorksInAGroupOfOne) {
  const testing::FakeGroup fake(1);
  TwoHeads net;
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto x = torch::ones({1, 3});
  ddp->forward(x).sum().backward();
  ddp->forward(x, false).sum().backward();
  EXPECT_THAT([&] { ddp->forward(x); }, ThrowsMessage<Error>(HasSubstr("right.weight")));
}

TEST(DistributedDataParallel, AForwardWithoutBackwardIsAllowed) {
  const testing::FakeGroup fake;
  TwoHeads net;
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto x = torch::ones({1, 3});
  ddp->forward(x);
  EXPECT_NO_THROW(ddp->forward(x).sum().backward());
}

TEST(DistributedDataParallel, AGradientComputedTwiceIsRejected) {
  const testing::FakeGroup fake;
  TwoHeads net;
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto x = torch::ones({1, 3});
  const auto output = ddp->forward(x, false).sum();
  output.backward({}, /*keep_graph=*/true);
  EXPECT_THAT([&] { output.backward(); }, ThrowsMessage<Error>(HasSubstr("a second time")));
}

TEST(DistributedDataParallel, NoSyncAddsUpAndTheNextBackwardReduces) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto x = torch::ones({1, 4});
  {
    std::optional<NoSync> guard;
    guard.emplace(ddp->no_sync());  // movable, for "all but the last micro-step"
    ddp->forward(x).sum().backward();
    ddp->forward(x).sum().backward();
  }
  EXPECT_EQ(fake.all_reduces(), 0);
  ddp->forward(x).sum().backward();
  EXPECT_EQ(fake.all_reduces(), 1);
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 4}, 1.5F)));
}

TEST(DistributedDataParallel, BackwardThrowsTheErrorOfAReduction) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto output = ddp->forward(torch::ones({1, 4})).sum();
  fake.backend->fail_next_call(std::make_exception_ptr(std::runtime_error("Connection closed by peer")));
  EXPECT_THAT([&] { output.backward(); }, ThrowsMessage<PeerLost>(HasSubstr("ddp_test.cpp")));
}

TEST(DistributedDataParallel, LeavesNoHooksBehind) {
  const testing::FakeGroup first;
  const testing::FakeGroup second;
  torch::nn::Linear net(4, 1);
  { const DistributedDataParallel gone(net, {.process_group = first.group}); }
  first.backend->clear_calls();
  DistributedDataParallel ddp(net, {.process_group = second.group});
  ddp->forward(torch::ones({1, 4})).sum().backward();
  EXPECT_EQ(first.all_reduces(), 0);
  EXPECT_EQ(second.all_reduces(), 1);
}

TEST(DistributedDataParallel, BuffersAreBroadcastBeforeEachTrainingForward) {
  const testing::FakeGroup fake(2);
  torch::nn::BatchNorm1d net(3);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  fake.backend->clear_calls();
  ddp->forward(torch::randn({4, 3})).sum().backward();
  int broadcasts = 0;
  for (const auto& call : fake.backend->calls()) broadcasts += call.op == c10d::OpType::BROADCAST ? 1 : 0;
  EXPECT_EQ(broadcasts, 2) << "one for float, one for int64";

  DistributedDataParallel quiet(net, {.broadcast_buffers = false, .process_group = fake.group});
  fake.backend->clear_calls();
  quiet->forward(torch::randn({4, 3})).sum().backward();
  for (const auto& call : fake.backend->calls()) EXPECT_NE(call.op, c10d::OpType::BROADCAST);
}

TEST(DistributedDataParallel, CallRecordsShowWhereItWasConstructed) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  ddp->forward(torch::ones({1, 4})).sum().backward();
  const auto record = fake.group.recent_calls().back();
  EXPECT_EQ(record.kind, CallKind::all_reduce);
  EXPECT_EQ(record.state, CallState::completed);
  EXPECT_THAT(record.describe(), HasSubstr("ddp_test.cpp"));
}

}  // namespace
}  // namespace lockstep::ddp_test
