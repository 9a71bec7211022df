// SPDX-License-Identifier: BSD-3-Clause
// DistributedDataParallel in a step that a GraphedStep warms up or captures.
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "comm/stream_watch.h"
#include "graphs/graph_phase.h"
#include "unit/ddp/fake_group.h"
#include "unit/graphs/fake_graph_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void forward_in_graph(DistributedDataParallelOptions options) {
  const testing::FakeGroup fake;
  options.process_group = fake.group;
  torch::nn::Linear net(2, 2);
  DistributedDataParallel ddp(net, options);
  const GraphPhaseScope phase(GraphPhase::warm_up);
  ddp->forward(torch::ones({1, 2}));
}

void expect_refused(const DistributedDataParallelOptions& options, const std::string& what) {
  EXPECT_THAT([&] { forward_in_graph(options); },
              ThrowsMessage<Error>(AllOf(HasSubstr(what), HasSubstr("cannot be captured in a graph"))));
}

TEST(DdpInGraph, OptionsThatNeedTheHostInEveryStepAreRejected) {
  expect_refused({.find_unused_parameters = true}, "find_unused_parameters");
  expect_refused({.optimizer_in_backward =
                      [](std::vector<at::Tensor> parameters) {
                        return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
                      }},
                 "optimizer_in_backward");
  expect_refused({.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}}, "mixed_precision");
  expect_refused({.delay_all_reduce_named_params = {"weight"}, .param_to_hook_all_reduce = "bias"},
                 "delay_all_reduce_named_params");
  EXPECT_NO_THROW(forward_in_graph({}));
  EXPECT_NO_THROW(forward_in_graph({.static_graph = true}));
}

TEST(DdpInGraph, BucketsAreNotRebuiltInACapture) {
  const testing::FakeGroup fake(1);
  torch::nn::Linear net(2, 2);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  const auto step = [&] { ddp->forward(torch::ones({1, 2})).sum().backward(); };
  step();
  {
    const GraphPhaseScope phase(GraphPhase::capture);
    EXPECT_THAT(step, ThrowsMessage<Error>(HasSubstr("raise warmup")));
  }
  step();
  const GraphPhaseScope phase(GraphPhase::capture);
  EXPECT_NO_THROW(step());
}

class CountCalls : public torch::autograd::FunctionPostHook {
 public:
  explicit CountCalls(int& calls) : calls_(calls) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    ++calls_;
    return outputs;
  }

 private:
  int& calls_;
};

// A node works on the stream on which it was made; a stream that is captured needs nodes that were made
// there.
TEST(DdpInGraph, GradientsArriveInNewNodesFromTheWarmUpOn) {
  const testing::FakeGroup fake(1);
  torch::nn::Linear net(2, 2);
  DistributedDataParallel ddp(net, {.process_group = fake.group});
  int calls = 0;
  torch::autograd::impl::grad_accumulator(net->weight)->add_post_hook(std::make_unique<CountCalls>(calls));
  const auto step = [&] { ddp->forward(torch::ones({1, 2})).sum().backward(); };
  step();
  EXPECT_EQ(calls, 1) << "DDP's node is the tensor's";
  const GraphPhaseScope phase(GraphPhase::warm_up);
  step();
  EXPECT_EQ(calls, 1) << "the old node is gone";
}

TEST(DdpInGraph, CallsOfHostBackendsAreRejectedByName) {
  const testing::FakeGroup fake;
  const auto tensor = torch::ones({3});
  const GraphPhaseScope phase(GraphPhase::warm_up);
  EXPECT_THAT([&] { fake.group.all_reduce(tensor); },
              ThrowsMessage<Error>(AllOf(HasSubstr("all_reduce"), HasSubstr("Float[3]"),
                                         HasSubstr("over fake"), HasSubstr("use NCCL"))));
  EXPECT_THAT([&] { fake.group.barrier(); }, ThrowsMessage<Error>(HasSubstr("barrier")));
  EXPECT_EQ(fake.all_reduces(), 0);
}

TEST(DdpInGraph, CallsOfOtherThreadsContinue) {
  const testing::FakeGroup fake;
  const GraphPhaseScope phase(GraphPhase::capture);
  // Like the work of a loader, or of a checkpoint writer.
  std::async(std::launch::async, [&] {
    fake.group.all_reduce(torch::ones({3}));
    fake.group.barrier();
  }).get();
  EXPECT_EQ(fake.all_reduces(), 1);
}

struct EndedWork : c10d::Work {
  EndedWork() { finish(); }
};

// Calls end on a stream, at once.
class StreamedFake : public backends::FakeBackend, public comm::StreamBackend {
 public:
  StreamedFake() : FakeBackend(0, 2) {}
  bool ends_on_stream(const c10d::Work& /*work*/) const override { return true; }
  WorkPtr observer_of(const WorkPtr& work) const override {
    return graph_phase() == GraphPhase::capture ? WorkPtr() : work;
  }
  WorkPtr mark_stream() const override { return c10::make_intrusive<EndedWork>(); }
  void prepare_observing_thread() const override {}
};

TEST(DdpInGraph, TwoWarmUpStepsSuffice) {
  for (const bool view : {true, false}) {
    const ProcessGroup group(c10::make_intrusive<StreamedFake>(),
                             {.name = "streams", .traits = backends::FakeBackend::traits()});
    torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 2));
    DistributedDataParallel ddp(net, {.process_group = group, .gradient_as_bucket_view = view});
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    GraphedStep step(torch::kCPU,
                     [&](const GraphedStep::Tensors& inputs) -> GraphedStep::Tensors {
                       optimizer.zero_grad();
                       auto loss = ddp->forward(inputs[0]).sum();
                       loss.backward();
                       optimizer.step();
                       return {loss};
                     },
                     {.optimizers = {&optimizer},
                      .modules = {ddp},
                      .warmup = 2,
                      .graph_device = std::make_shared<testing::FakeGraphDevice>()});
    for (int i = 0; i < 5; ++i) step({torch::ones({4, 2})});
    EXPECT_EQ(step.stats().replays, 3) << "bucket views: " << view;
  }
}

TEST(DdpInGraph, GradientsKeepTheLayoutOfTheirParameters) {
  const testing::FakeGroup fake;
  torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::Conv2d(8, 4, 3));
  to_memory_format(*net, at::MemoryFormat::ChannelsLast);
  for (const bool view : {true, false}) {
    DistributedDataParallel ddp(net, {.process_group = fake.group, .gradient_as_bucket_view = view});
    for (int step = 0; step < 3; ++step) {
      const auto images = torch::randn({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
      ddp->forward(images).sum().backward();
      for (const auto& parameter : net->parameters()) {
        EXPECT_EQ(parameter.grad().strides(), parameter.strides()) << "bucket views: " << view;
      }
      net->zero_grad();
    }
  }
}

}  // namespace
}  // namespace lockstep
