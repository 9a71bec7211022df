// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/nn/cpus.h"

namespace lockstep {
namespace {

using testing::cpus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    fc = register_module("fc", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return fc->forward(at::relu(norm->forward(conv->forward(x))).flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

void expect_close(const at::Tensor& here, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(here.defined(), expected.defined()) << what;
  if (here.defined()) {
    EXPECT_TRUE(at::allclose(here, expected, 1e-5, 1e-6)) << what;
  }
}

void expect_equal_gradients(const torch::nn::Module& ours, const torch::nn::Module& expected) {
  for (const auto& item : expected.named_parameters()) {
    expect_close(ours.named_parameters()[item.key()].grad(), item.value().grad(), item.key());
  }
}

// In eval() nothing depends on how the batch is cut.
TEST(DataParallel, OutputsAndGradientsEqualThoseOfTheModule) {
  for (const std::size_t count : {2, 3, 4}) {
    for (const std::int64_t batch : {8, 5, 2, 1}) {
      torch::manual_seed(1);
      Net net;
      net->eval();
      const auto reference = std::dynamic_pointer_cast<NetImpl>(net->clone());
      reference->eval();
      DataParallel model(net, {.device_ids = cpus(count)});
      const auto input = torch::randn({batch, 1, 4, 4}).requires_grad_();
      const auto same = input.detach().clone().requires_grad_();
      const auto output = model->forward(input);
      const auto expected = reference->forward(same);
      expect_close(output, expected, "output");
      output.square().sum().backward();
      expected.square().sum().backward();
      expect_close(input.grad(), same.grad(), "gradient of the input");
      expect_equal_gradients(*net, *reference);
    }
  }
}

// As PyTorch documents it: each replica normalizes its part, and the first one's statistics stay.
TEST(DataParallel, BatchNormStatisticsAreTheFirstReplicas) {
  torch::manual_seed(1);
  Net net;
  const auto reference = std::dynamic_pointer_cast<NetImpl>(net->clone());
  DataParallel model(net, {.device_ids = cpus(2)});
  const auto input = torch::randn({6, 1, 4, 4});
  const auto output = model->forward(input);
  const auto first = reference->forward(input.narrow(0, 0, 3));
  const auto statistics = reference->norm->running_mean.clone();
  const auto second = reference->forward(input.narrow(0, 3, 3));
  expect_close(output, at::cat({first, second}), "output");
  expect_close(net->norm->running_mean, statistics, "running_mean");
  EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 1);
  output.sum().backward();
  (first.sum() + second.sum()).backward();
  expect_equal_gradients(*net, *reference);
}

TEST(DataParallel, TrainsTheParametersOfTheModule) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  const auto reference = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  DataParallel model(net, {.device_ids = cpus(2)});
  torch::optim::Adam ours(model->parameters(), 0.05);
  torch::optim::Adam theirs(reference->parameters(), 0.05);
  for (int step = 0; step < 5; ++step) {
    const auto input = torch::randn({7, 4});
    ours.zero_grad();
    theirs.zero_grad();
    model->forward(input).square().mean().backward();
    reference->forward(input).square().mean().backward();
    ours.step();
    theirs.step();
  }
  for (const auto& item : reference->named_parameters()) {
    expect_close(net->named_parameters()[item.key()], item.value(), item.key());
  }
  // Changes to the module itself apply to the replicas.
  net->to(at::kDouble);
  reference->to(at::kDouble);
  const auto input = torch::randn({5, 4}, at::kDouble);
  expect_close(model->forward(input), reference->forward(input), "in double precision");
  freeze(*net, {"0"});
  model->forward(input).sum().backward();
  EXPECT_FALSE(net->named_parameters()["0.weight"].requires_grad());
}

TEST(DataParallel, NamesCarryModule) {
  const DataParallel model(Net(), {.device_ids = cpus(2)});
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) names.push_back(item.key());
  EXPECT_THAT(names, ElementsAre("module.conv.weight", "module.conv.bias", "module.norm.weight",
                                 "module.norm.bias", "module.fc.weight", "module.fc.bias"));
  EXPECT_TRUE(model->named_buffers().contains("module.norm.running_mean"));
}

struct Outputs {
  at::Tensor rows;
  std::vector<at::Tensor> list;
  std::map<std::string, at::Tensor> by_name;
  at::Tensor scalar;
  std::string note;
  int count = 0;
  template <typename F>
  void visit_tensors(F&& f) {
    f(rows);
    for (auto& tensor : list) f(tensor);
    for (auto& [name, tensor] : by_name) f(tensor);
    f(scalar);
  }
};

struct ManyImpl : torch::nn::Cloneable<ManyImpl> {
  ManyImpl() { reset(); }
  void reset() override { scale = register_parameter("scale", torch::ones({1})); }
  Outputs forward(const std::pair<at::Tensor, std::vector<at::Tensor>>& input, const at::Tensor& more,
                  const std::string& note, int factor, const std::unique_ptr<int>& not_copied) {
    const auto rows = input.first * scale;
    return {.rows = rows,
            .list = {input.second[0] * factor, more.clone()},
            .by_name = {{"ids", input.second[1].to(at::kLong)}},
            .scalar = rows.sum(),
            .note = note,
            .count = *not_copied};
  }
  at::Tensor scale;
};
TORCH_MODULE(Many);

TEST(DataParallel, AcceptsAndReturnsNestedValues) {
  Many net;
  DataParallel model(net, {.device_ids = cpus(3)});
  const auto first = torch::arange(10.).view({5, 2});
  const std::pair<at::Tensor, std::vector<at::Tensor>> input{first, {first + 1, first + 2}};
  const auto outputs =
      model->forward(input, first.t().contiguous().t(), "a note", 3, std::make_unique<int>(4));
  EXPECT_TRUE(torch::equal(outputs.rows, first));
  EXPECT_TRUE(torch::equal(outputs.list[0], (first + 1) * 3));
  EXPECT_TRUE(torch::equal(outputs.list[1], first));
  EXPECT_TRUE(torch::equal(outputs.by_name.at("ids"), (first + 2).to(at::kLong)));
  EXPECT_TRUE(
      torch::equal(outputs.scalar, torch::tensor({0. + 1 + 2 + 3, 4. + 5 + 6 + 7, 8. + 9}, at::kFloat)));
  EXPECT_EQ(outputs.note, "a note");
  EXPECT_EQ(outputs.count, 4);
  EXPECT_FALSE(outputs.by_name.at("ids").requires_grad());
  (outputs.scalar.sum() + outputs.rows.sum()).backward();
  EXPECT_EQ(net->scale.grad().item<float>(), 90);
}

TEST(DataParallel, ScattersAlongAnotherDimension) {
  torch::nn::Sequential net(torch::nn::Functional(at::relu));
  DataParallel model(net, {.device_ids = cpus(2), .dim = 1});
  const auto input = torch::randn({3, 5}).requires_grad_();
  const auto output = model->forward(input);
  EXPECT_TRUE(torch::equal(output, at::relu(input)));
  output.sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), input.gt(0).to(at::kFloat)));
}

TEST(DataParallel, TheFirstLayerMayWorkInPlace) {
  torch::nn::Sequential net(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  DataParallel model(net, {.device_ids = cpus(2)});
  const auto input = torch::randn({4, 2}).requires_grad_();
  model->forward(input * 2).sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), input.gt(0).to(at::kFloat) * 2));
}

TEST(DataParallel, NamesAReplacedSubmodule) {
  Net net;
  DataParallel model(net, {.device_ids = cpus(2)});
  net->fc = std::dynamic_pointer_cast<torch::nn::LinearImpl>(
      net->replace_module("fc", torch::nn::Linear(16, 3).ptr()));
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({4, 1, 4, 4}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("fc.weight")));
}

struct WhereImpl : torch::nn::Cloneable<WhereImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    // Both replicas run at the same time, otherwise this would never end.
    const auto here = static_cast<std::int64_t>(::gettid());
    std::unique_lock lock(mutex());
    present().insert(here);
    arrived().notify_all();
    arrived().wait(lock, [] { return present().size() == 2; });
    return torch::full({x.size(0)}, here, at::kLong);
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::condition_variable& arrived() {
    static std::condition_variable one;
    return one;
  }
  static std::set<std::int64_t>& present() {
    static std::set<std::int64_t> all;
    return all;
  }
};
TORCH_MODULE(Where);

TEST(DataParallel, RunsReplicasConcurrentlyInPersistentThreads) {
  DataParallel model(Where(), {.device_ids = cpus(2)});
  const auto first = model->forward(torch::zeros({2}));
  EXPECT_NE(first[0].item<std::int64_t>(), first[1].item<std::int64_t>());
  EXPECT_TRUE(torch::equal(model->forward(torch::zeros({2})), first));
}

TEST(DataParallel, RandomNumbersFollowFromTheSeedAlone) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Dropout());
  torch::manual_seed(3);
  const auto before = torch::rand({2});
  torch::manual_seed(3);
  DataParallel model(net, {.device_ids = cpus(4)});
  EXPECT_TRUE(torch::equal(torch::rand({2}), before)) << "making replicas drew random numbers";
  const auto input = torch::ones({16, 4});
  const auto draw = [&] {
    torch::manual_seed(9);
    const auto first = model->forward(input);
    return at::cat({first, model->forward(input)});
  };
  const auto once = draw();
  EXPECT_TRUE(torch::equal(draw(), once));
  EXPECT_FALSE(torch::equal(once.narrow(0, 0, 16), once.narrow(0, 16, 16)));
  EXPECT_FALSE(torch::equal(once.narrow(0, 0, 4), once.narrow(0, 4, 4)));
}

TEST(DataParallel, FollowsModesAndGradMode) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Dropout());
  DataParallel model(net, {.device_ids = cpus(2)});
  model->eval();
  const auto input = torch::randn({4, 2});
  EXPECT_TRUE(torch::equal(model->forward(input), model->forward(input)));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(input).requires_grad());
}

TEST(DataParallel, BackwardMayRunAgainOnlyWithARetainedGraph) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Tanh());
  DataParallel model(net, {.device_ids = cpus(2)});
  const auto sum = model->forward(torch::randn({4, 2})).sum();
  sum.backward({}, /*retain_graph=*/true);
  const auto once = net->parameters()[0].grad().clone();
  sum.backward();
  expect_close(net->parameters()[0].grad(), 2 * once, "twice");
  EXPECT_THROW(sum.backward(), std::exception);
  const auto input = torch::randn({4, 2}).requires_grad_();
  const auto other = model->forward(input).sum();
  EXPECT_THAT([&] { torch::autograd::grad({other}, {input}, {}, true, true); },
              ThrowsMessage<std::exception>(HasSubstr("create_graph")));
}

TEST(DataParallel, SeveralForwardsBeforeOneBackward) {
  torch::manual_seed(1);
  Net net;
  const auto reference = std::dynamic_pointer_cast<NetImpl>(net->clone());
  DataParallel model(net, {.device_ids = cpus(2)});
  const auto input = torch::randn({4, 1, 4, 4});
  (model->forward(input).sum() + model->forward(input * 2).square().sum()).backward();
  const auto halves = [&](const at::Tensor& x) {
    return at::cat({reference->forward(x.narrow(0, 0, 2)), reference->forward(x.narrow(0, 2, 2))});
  };
  (halves(input).sum() + halves(input * 2).square().sum()).backward();
  expect_equal_gradients(*net, *reference);
}

struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  TiedImpl() { reset(); }
  void reset() override {
    embedding = register_module("embedding", torch::nn::Embedding(10, 4));
    out = register_module("out", torch::nn::Linear(torch::nn::LinearOptions(4, 10).bias(false)));
    out->weight = embedding->weight;
    out->named_parameters(false);
  }
  at::Tensor forward(const at::Tensor& ids) { return at::linear(embedding->forward(ids), embedding->weight); }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Tied);

TEST(DataParallel, AParameterUsedTwiceGetsItsWholeGradient) {
  torch::manual_seed(2);
  Tied net;
  const auto reference = std::dynamic_pointer_cast<TiedImpl>(net->clone());
  DataParallel model(net, {.device_ids = cpus(2)});
  const auto ids = torch::randint(10, {6}, at::kLong);
  model->forward(ids).square().sum().backward();
  reference->forward(ids).square().sum().backward();
  expect_close(net->embedding->weight.grad(), reference->embedding->weight.grad(), "embedding");
}

TEST(DataParallel, AddsSparseGradients) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(6, 2).sparse(true));
  DataParallel model(net, {.device_ids = cpus(2)});
  model->forward(torch::tensor({1, 2, 2, 5}, at::kLong)).sum().backward();
  EXPECT_TRUE(net->weight.grad().is_sparse());
  EXPECT_TRUE(torch::equal(net->weight.grad().to_dense().select(1, 0),
                           torch::tensor({0., 1., 2., 0., 0., 1.}, at::kFloat)));
}

TEST(DataParallel, WithZeroOrOneDeviceTheModuleRunsDirectly) {
  torch::nn::Linear net(2, 2);
  const auto input = torch::randn({4, 2});
  for (const auto& devices : {cpus(1), cpus(0)}) {
    if (devices.empty() && torch::cuda::is_available()) continue;
    DataParallel model(net, {.device_ids = devices});
    EXPECT_TRUE(torch::equal(model->forward(input), net->forward(input)));
  }
}

TEST(DataParallel, KeepsIntraOpThreadsOfTheCaller) {
  const auto before = at::get_num_threads();
  at::set_num_threads(4);
  torch::nn::Linear net(2, 2);
  DataParallel model(net, {.device_ids = cpus(2)});
  model->forward(torch::ones({4, 2})).sum().backward();
  EXPECT_EQ(at::get_num_threads(), 4);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace lockstep
