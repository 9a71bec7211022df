// SPDX-License-Identifier: BSD-3-Clause
// What DistributedDataParallel's features do that the parity tests do not see.
#include <filesystem>
#include <memory>
#include <type_traits>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "support/file_text.h"
#include "support/temp_folder.h"
#include "unit/ddp/fake_group.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

struct FailingNet : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool fails) {
    if (fails) throw std::runtime_error("refused");
    return linear->forward(x);
  }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(4, 1))};
};

// The fake group has no node-local group, like ranks on several hosts.
TEST(FailedForward, IsReportedInTheGradients) {
  const testing::FakeGroup fake(2);
  DistributedDataParallel ddp(std::make_shared<FailingNet>(), {.process_group = fake.group});
  EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true), std::runtime_error);
  fake.backend->clear_calls();
  ddp->forward(torch::ones({1, 4}), false).sum().backward();
  EXPECT_EQ(fake.all_reduces(), 2);
  EXPECT_TRUE(torch::equal(ddp->module()->linear->weight.grad(), torch::full({1, 4}, 0.5)));
}

TEST(FailedForward, HasNoEffectIfTheGradientsCannotReportIt) {
  const testing::FakeGroup fake(2);
  DistributedDataParallel ddp(std::make_shared<FailingNet>(), {.process_group = fake.group});
  ddp->register_comm_hook(allreduce_hook);
  EXPECT_THROW(ddp->forward(torch::ones({1, 4}), true), std::runtime_error);
  fake.backend->clear_calls();
  ddp->forward(torch::ones({1, 4}), false).sum().backward();
  EXPECT_EQ(fake.all_reduces(), 1);
}

TEST(FindUnused, ABackwardAfterTheDdpIsDestroyedIsNotReduced) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  at::Tensor loss;
  {
    DistributedDataParallel ddp(net, {.process_group = fake.group, .find_unused_parameters = true});
    loss = ddp->forward(torch::ones({1, 4})).sum();
  }
  fake.backend->clear_calls();
  loss.backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::ones({1, 4})));
  EXPECT_THAT(fake.backend->calls(), IsEmpty());
}

TEST(Freeze, AcceptsNamesModulesAndPatterns) {
  struct Net : torch::nn::Module {
    torch::nn::Linear body{register_module("body", torch::nn::Linear(2, 2))};
    torch::nn::Linear fc{register_module("fc", torch::nn::Linear(2, 2))};
    torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(2, 2))};
  };
  Net net;
  EXPECT_THAT(freeze_all_but(net, {"fc"}), ElementsAre("body.weight", "body.bias", "fc2.weight", "fc2.bias"));
  EXPECT_TRUE(net.fc->weight.requires_grad());
  Net other;
  EXPECT_THAT(freeze(other, {"*.bias", "fc?"}),
              ElementsAre("body.bias", "fc.bias", "fc2.weight", "fc2.bias"));
  struct Tied : torch::nn::Module {
    Tied() { register_parameter("head", table->weight); }
    torch::nn::Embedding table{register_module("table", torch::nn::Embedding(3, 2))};
    torch::nn::Linear body{register_module("body", torch::nn::Linear(2, 2))};
  };
  Tied tied;
  EXPECT_THAT(freeze_all_but(tied, {"head"}), ElementsAre("body.weight", "body.bias"));
  EXPECT_TRUE(tied.table->weight.requires_grad());
  EXPECT_THAT([&] { freeze(other, {"bdoy"}); }, ThrowsMessage<ArgumentError>(HasSubstr("bdoy")));
}

TEST(ModuleRef, IsAModuleAHolderOrASharedPtr) {
  static_assert(!std::is_convertible_v<const torch::nn::Linear&, ModuleRef>);
  static_assert(!std::is_convertible_v<const torch::nn::LinearImpl&, ModuleRef>);
  static_assert(std::is_convertible_v<const torch::nn::Linear&, ConstModuleRef>);
  static_assert(std::is_convertible_v<ModuleRef, ConstModuleRef>);
  static_assert(!std::is_convertible_v<ConstModuleRef, ModuleRef>);
  torch::nn::Linear net(2, 2);
  const auto shared = net.ptr();
  EXPECT_THAT(freeze(net, {"bias"}), ElementsAre("bias"));
  EXPECT_THAT(freeze(shared, {"bias"}), ElementsAre("bias"));
  EXPECT_THAT(freeze(*shared, {"weight"}), ElementsAre("weight"));
  EXPECT_FALSE(net->bias.requires_grad() || net->weight.requires_grad());
  EXPECT_EQ(state_dict(std::as_const(net)).size(), 2U);
  torch::nn::Linear empty(nullptr);
  EXPECT_THAT([&] { freeze(empty, {"bias"}); },
              ThrowsMessage<ArgumentError>(HasSubstr("empty holder or a null pointer")));
  EXPECT_THAT([&] { freeze(std::shared_ptr<torch::nn::Module>(), {"bias"}); },
              ThrowsMessage<ArgumentError>(HasSubstr("(at features_test.cpp:")));
}

TEST(ModuleRef, AWrapperTakesAModuleThatASharedPtrOwns) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(2, 2);
  const DistributedDataParallel ddp(*net, {.process_group = fake.group});
  EXPECT_EQ(ddp->module(), net.ptr());
  torch::nn::LinearImpl unowned(2, 2);
  EXPECT_THAT([&] { DistributedDataParallel(unowned, {.process_group = fake.group}); },
              ThrowsMessage<ArgumentError>(HasSubstr("no shared_ptr owns the module")));
}

TEST(ClipGradNorm, ScalesDownAndRejectsGradientsThatAreNotAveraged) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(torch::nn::LinearOptions(4, 1).bias(false));
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  ddp->forward(torch::full({1, 4}, 2.0)).sum().backward();
  EXPECT_DOUBLE_EQ(clip_grad_norm_(ddp, 1.0), 2);
  EXPECT_NEAR(net->weight.grad().norm().item<double>(), 1, 1e-5);
  clip_grad_value_(ddp, 0.1);
  EXPECT_NEAR(net->weight.grad().max().item<double>(), 0.1, 1e-6);
  {
    const auto guard = ddp->no_sync();
    ddp->forward(torch::ones({1, 4})).sum().backward();
  }
  EXPECT_THAT([&] { clip_grad_norm_(ddp, 1.0); }, ThrowsMessage<Error>(HasSubstr("no_sync()")));
  ddp->forward(torch::full({1, 4}, std::numeric_limits<float>::infinity())).sum().backward();
  EXPECT_THAT([&] { clip_grad_norm_(ddp, 1.0, {.error_if_nonfinite = true}); },
              ThrowsMessage<Error>(HasSubstr("inf")));
}

DistributedDataParallelOptions sgd_in_backward(const ProcessGroup& group) {
  return {.process_group = group,
          .bucket_cap_mb = 0.00003,
          .optimizer_in_backward = [](std::vector<at::Tensor> parameters) {
            return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.1));
          }};
}

TEST(OptimizerInBackward, StepsAndDropsGradientsInGroupsOfAnySize) {
  for (const int ranks : {1, 2}) {
    const testing::FakeGroup fake(ranks);
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
    DistributedDataParallel ddp(net, sgd_in_backward(fake.group));
    EXPECT_THAT(ddp->optimizers(), SizeIs(4));
    const auto before = net->parameters().front().detach().clone();
    for (int step = 0; step < 3; ++step) ddp->forward(torch::ones({1, 4})).sum().backward();
    EXPECT_FALSE(torch::equal(before, net->parameters().front()));
    for (const auto& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    EXPECT_THAT([&] { clip_grad_norm_(ddp, 1.0); }, ThrowsMessage<Error>(HasSubstr("optimizer_in_backward")));
    EXPECT_THAT([&] { ddp->register_comm_hook(allreduce_hook); },
                ThrowsMessage<ArgumentError>(HasSubstr("optimizer_in_backward")));
  }
}

TEST(MixedPrecision, UsesSeparateTypesToComputeReduceAndStep) {
  const testing::FakeGroup fake(2);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
  auto reference = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  reference->to(at::kBFloat16);
  const auto x = torch::randn({3, 4});
  DistributedDataParallel ddp(
      net, {.process_group = fake.group,
            .mixed_precision = MixedPrecision{
                .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .buffer_dtype = at::kBFloat16}});
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto output = ddp->forward(x);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.pow(2).sum().backward();
    reference->zero_grad();
    reference->forward(x.to(at::kBFloat16)).pow(2).sum().backward();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_EQ(net->parameters()[i].scalar_type(), at::kFloat);
      EXPECT_TRUE(
          torch::equal(net->parameters()[i].grad(), reference->parameters()[i].grad().to(at::kFloat) / 2));
    }
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      reference->parameters()[i].copy_(net->parameters()[i]);
    }
  }
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(ddp->forward(x).scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->parameters().front().scalar_type(), at::kFloat) << "own values also after a forward alone";
}

TEST(MixedPrecision, AccumulatesInNoSyncAndKeepsLowPrecisionGradients) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(torch::nn::LinearOptions(4, 1).bias(false));
  DistributedDataParallel ddp(net, {.process_group = fake.group,
                                    .mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16,
                                                                      .keep_low_precision_grads = true}});
  for (int step = 0; step < 2; ++step) {
    ddp->zero_grad();
    {
      const auto guard = ddp->no_sync();
      ddp->forward(torch::ones({1, 4})).sum().backward();
    }
    ddp->forward(torch::ones({1, 4})).sum().backward();
    EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(net->weight.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->weight.grad()[0][0].item<float>(), 1);
  }
}

TEST(MixedPrecision, RejectsExcludedOptions) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  const MixedPrecision bf16{.param_dtype = at::kBFloat16};
  const auto wrap = [&](DistributedDataParallelOptions options) {
    options.process_group = fake.group;
    const DistributedDataParallel ddp(net, options);
  };
  EXPECT_THAT([&] { wrap({.static_graph = true, .mixed_precision = bf16}); },
              ThrowsMessage<ArgumentError>(HasSubstr("static_graph")));
  EXPECT_THAT([&] { wrap({.mixed_precision = MixedPrecision{.param_dtype = at::kInt}}); },
              ThrowsMessage<ArgumentError>(HasSubstr("Int is not a floating-point type")));
}

TEST(Stats, CountStepsAndShowBuckets) {
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  EXPECT_EQ(ddp->stats().steps, 0);
  for (int step = 0; step < 3; ++step) ddp->forward(torch::ones({1, 4})).sum().backward();
  const auto stats = ddp->stats();
  EXPECT_EQ(stats.steps, 3);
  EXPECT_GT(stats.mean.forward, 0);
  EXPECT_GT(stats.mean.backward, 0);
  EXPECT_GE(stats.last.communication_exposed, 0);
  EXPECT_THAT(stats.buckets.front().parameters, ElementsAre("bias", "weight"));
  EXPECT_THAT(stats.arrived_last, ElementsAre(0, 0));
}

TEST(Trace, WritesTheStepsOfAllRanksAtTheForwardAfterThem) {
  const testing::TempFolder folder;
  const testing::FakeGroup fake(2);
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto file = folder.file("trace.json");
  trace(ddp, file, 2);
  EXPECT_THAT([&] { trace(ddp, file); }, ThrowsMessage<ArgumentError>(HasSubstr("not been written yet")));
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(std::filesystem::exists(file));
    ddp->forward(torch::ones({1, 4})).sum().backward();
  }
  const auto text = testing::text_of(file);
  EXPECT_THAT(text, ::testing::StartsWith("{"));
  EXPECT_THAT(text, HasSubstr(R"("name": "backward")"));
  EXPECT_THAT(text, HasSubstr("bucket 0 (20 bytes, weight first)"));
  trace(ddp, folder.file("no/such/trace.json"), 1);
  ddp->forward(torch::ones({1, 4})).sum().backward();
  EXPECT_THAT(
      [&] {
        ddp->forward(torch::ones({1, 4}));
      },
      ThrowsMessage<Error>(HasSubstr("no/such/trace.json")));
}

TEST(Join, RejectsInvalidArguments) {
  const testing::FakeGroup one;
  const testing::FakeGroup other;
  torch::nn::Linear net(4, 1);
  DistributedDataParallel a(net, {.process_group = one.group});
  DistributedDataParallel b(net, {.process_group = other.group});
  EXPECT_THAT([] { const Join join({}); }, ThrowsMessage<ArgumentError>(HasSubstr("at least one")));
  EXPECT_THAT(([&] {
                const Join join({a.get(), b.get()});
              }),
              ThrowsMessage<ArgumentError>(HasSubstr("different process groups")));
}

TEST(Join, RejectsUnsupportedOptions) {
  const testing::FakeGroup fake;
  torch::nn::Linear net(4, 1);
  DistributedDataParallel delayed(net, {.process_group = fake.group,
                                        .delay_all_reduce_named_params = {"bias"},
                                        .param_to_hook_all_reduce = "weight"});
  EXPECT_THAT([&] { const auto join = delayed->join(); },
              ThrowsMessage<ArgumentError>(HasSubstr("delay_all_reduce_named_params")));
}

TEST(Join, DoesNothingWhenAnExceptionLeavesItsScope) {
  const testing::FakeGroup fake;
  torch::nn::Linear net(4, 1);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  fake.backend->clear_calls();
  EXPECT_THROW(
      {
        const auto join = ddp->join();
        throw std::runtime_error("out of data");
      },
      std::runtime_error);
  EXPECT_THAT(fake.backend->calls(), IsEmpty());
}

}  // namespace
}  // namespace lockstep
