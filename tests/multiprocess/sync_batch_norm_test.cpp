// SPDX-License-Identifier: BSD-3-Clause
// SyncBatchNorm against one BatchNorm over the joined batch in double precision, between real processes.
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "parity/models/resnet.h"
#include "support/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

enum class Layout { contiguous, channels_last, permuted, strided };

struct Drawn {
  std::vector<std::int64_t> samples;  // of each rank
  std::vector<std::int64_t> shape;    // of a sample, channels first
  Layout layout = Layout::contiguous;
  at::ScalarType dtype = at::kFloat;
  bool converted = false;  // one of LibTorch's layers
  bool weights_in_dtype = true;
  torch::nn::BatchNormOptions options{1};
};

template <typename T>
T pick(std::mt19937& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}

Drawn draw(std::mt19937& random, int world_size) {
  Drawn drawn;
  const auto channels = pick<std::int64_t>(random, {1, 3, 8, 17});
  drawn.shape = {channels};
  const int dims = static_cast<int>(random() % 4);
  for (int i = 0; i < dims; ++i) drawn.shape.push_back(pick<std::int64_t>(random, {1, 2, 5, 7}));
  drawn.dtype = pick(random, std::vector{at::kFloat, at::kFloat, at::kDouble, at::kBFloat16});
  drawn.layout =
      pick(random, std::vector{Layout::contiguous, Layout::channels_last, Layout::permuted, Layout::strided});
  drawn.weights_in_dtype = random() % 2 == 0;
  drawn.converted = random() % 2 == 0;
  // LibTorch's own layers reject a single value per channel; a separate test covers this.
  std::int64_t places = 1;
  for (std::size_t i = 1; i < drawn.shape.size(); ++i) places *= drawn.shape[i];
  const bool one_is_fine = !drawn.converted || places > 1;
  for (int rank = 0; rank < world_size; ++rank) {
    drawn.samples.push_back(pick<std::int64_t>(random, {0, one_is_fine ? 1 : 2, 2, 3, 6}));
  }
  drawn.samples[random() % drawn.samples.size()] += 2;
  drawn.options = torch::nn::BatchNormOptions(channels)
                      .affine(random() % 4 != 0)
                      .track_running_stats(random() % 4 != 0)
                      .eps(pick(random, std::vector{1e-5, 1e-3}));
  drawn.options.momentum(random() % 3 == 0 ? std::nullopt : std::optional(0.3));
  return drawn;
}

std::string describe(const Drawn& drawn) {
  return fmt::format(
      "samples [{}] of [{}], layout {}, {}, {}, weights {}, affine {}, tracks {}, momentum {}",
      fmt::join(drawn.samples, ", "), fmt::join(drawn.shape, ", "), static_cast<int>(drawn.layout),
      c10::toString(drawn.dtype), drawn.converted ? "converted" : "SyncBatchNorm", drawn.weights_in_dtype,
      drawn.options.affine(), drawn.options.track_running_stats(), drawn.options.momentum().value_or(-1));
}

at::Tensor laid_out(const at::Tensor& values, Layout layout) {
  switch (layout) {
    case Layout::channels_last:
      if (values.dim() == 4) return values.contiguous(at::MemoryFormat::ChannelsLast);
      if (values.dim() == 5) return values.contiguous(at::MemoryFormat::ChannelsLast3d);
      return values.contiguous();
    case Layout::permuted:
      return values.transpose(0, 1).contiguous().transpose(0, 1);
    case Layout::strided: {
      auto wider = at::zeros({values.size(0), 2 * values.size(1)}, values.options());
      if (values.dim() != 2) return values.clone();
      wider.narrow(1, 0, values.size(1)).copy_(values);
      return wider.narrow(1, 0, values.size(1));
    }
    case Layout::contiguous:
      break;
  }
  return values.clone();
}

// What a layer did with one batch, in fp64.
struct Outcome {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
};

double tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-9;
  return dtype == at::kFloat ? 1e-5 : 0.06;  // bf16 has 8 bits, and a batch of two samples magnifies them
}

void expect_close(const at::Tensor& here, const at::Tensor& reference, double tolerance, const char* what) {
  ASSERT_EQ(here.defined(), reference.defined()) << what;
  if (!here.defined() || here.numel() == 0) return;
  ASSERT_EQ(here.sizes(), reference.sizes()) << what;
  const auto error = (here.to(at::kDouble) - reference).abs() / (1 + reference.abs());
  EXPECT_LE(error.max().item<double>(), tolerance) << what;
}

std::shared_ptr<torch::nn::Module> make_layer(const Drawn& drawn, const ProcessGroup& group) {
  if (!drawn.converted) return SyncBatchNorm(drawn.options, group).ptr();
  std::shared_ptr<torch::nn::Module> layer;
  if (drawn.shape.size() <= 2) layer = torch::nn::BatchNorm1d(drawn.options).ptr();
  if (drawn.shape.size() == 3) layer = torch::nn::BatchNorm2d(drawn.options).ptr();
  if (drawn.shape.size() == 4) layer = torch::nn::BatchNorm3d(drawn.options).ptr();
  return convert_sync_batchnorm(layer, group);
}

at::Tensor call(const std::shared_ptr<torch::nn::Module>& layer, const at::Tensor& input) {
  if (auto* const one = layer->as<torch::nn::BatchNorm1d>()) return one->forward(input);
  if (auto* const two = layer->as<torch::nn::BatchNorm2d>()) return two->forward(input);
  if (auto* const three = layer->as<torch::nn::BatchNorm3d>()) return three->forward(input);
  return layer->as<SyncBatchNorm>()->forward(input);
}

at::Tensor entry(const torch::OrderedDict<std::string, at::Tensor>& tensors, const char* name) {
  const auto* const found = tensors.find(name);
  return found == nullptr ? at::Tensor() : *found;
}

void check(const Drawn& drawn, const ProcessGroup& group, std::uint64_t seed) {
  torch::manual_seed(seed);
  const auto layer = make_layer(drawn, group);
  SyncBatchNorm reference(drawn.options);  // never in a group: see below
  reference->to(at::kDouble);
  layer->to(drawn.weights_in_dtype || drawn.dtype == at::kDouble ? drawn.dtype : at::kFloat);
  if (drawn.options.affine()) {
    const torch::NoGradGuard no_grad;
    for (const char* name : {"weight", "bias"}) {
      auto theirs = entry(reference->named_parameters(), name);
      theirs.copy_(at::rand_like(theirs).add_(0.5).to(drawn.dtype));
      entry(layer->named_parameters(), name).copy_(theirs);
    }
  }
  std::int64_t before = 0;
  std::int64_t all = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank < group.rank()) before += drawn.samples[static_cast<std::size_t>(rank)];
    all += drawn.samples[static_cast<std::size_t>(rank)];
  }
  const auto own = drawn.samples[static_cast<std::size_t>(group.rank())];
  for (int step = 0; step < 2; ++step) {
    std::vector<std::int64_t> shape{all};
    shape.insert(shape.end(), drawn.shape.begin(), drawn.shape.end());
    const auto values = (at::randn(shape, at::kDouble) * 2 + 3).to(drawn.dtype).to(at::kDouble);
    const auto factors = at::randn(shape, at::kDouble).to(drawn.dtype).to(at::kDouble);

    const auto whole = values.clone().requires_grad_();
    const auto expected =
        torch::nn::functional::batch_norm(whole, reference->running_mean, reference->running_var,
                                          torch::nn::functional::BatchNormFuncOptions()
                                              .weight(reference->weight)
                                              .bias(reference->bias)
                                              .training(true)
                                              .momentum(drawn.options.momentum().value_or(1.0 / (step + 1)))
                                              .eps(drawn.options.eps()));
    (expected * factors).sum().backward();

    const auto input = laid_out(values.narrow(0, before, own).to(drawn.dtype), drawn.layout).requires_grad_();
    const auto output = call(layer, input);
    ASSERT_EQ(output.scalar_type(), drawn.dtype);
    (output * factors.narrow(0, before, own).to(drawn.dtype)).sum().backward();

    const auto tolerance = tolerance_of(drawn.dtype);
    expect_close(output, expected.narrow(0, before, own), tolerance, "output");
    expect_close(input.grad(), whole.grad().narrow(0, before, own), tolerance, "gradient of the input");
    if (drawn.options.affine()) {
      for (const char* name : {"weight", "bias"}) {
        auto parameter = entry(layer->named_parameters(), name);
        auto sum = parameter.grad().to(at::kDouble);
        group.all_reduce(sum);
        auto theirs = entry(reference->named_parameters(), name);
        expect_close(sum, theirs.grad(), tolerance * 2, name);
        parameter.mutable_grad().zero_();
        theirs.mutable_grad().zero_();
      }
    }
    if (drawn.options.track_running_stats()) {
      const auto buffers = layer->named_buffers();
      expect_close(entry(buffers, "running_mean"), reference->running_mean, tolerance, "running_mean");
      expect_close(entry(buffers, "running_var"), reference->running_var, tolerance, "running_var");
      EXPECT_EQ(entry(buffers, "num_batches_tracked").item<std::int64_t>(), step + 1);
    }
  }
}

const testing::Scenario drawn_cases("sync batch norm: drawn", [] {
  const auto context = init();
  std::mt19937 random(static_cast<unsigned>(7 + context.world_size()));
  for (int i = 0; i < 80; ++i) {
    const auto drawn = draw(random, context.world_size());
    SCOPED_TRACE(fmt::format("case {} on rank {}: {}", i, context.rank(), describe(drawn)));
    check(drawn, context.group(), static_cast<std::uint64_t>(i));
  }
});

class SyncBatchNormCases : public ::testing::TestWithParam<int> {};

TEST_P(SyncBatchNormCases, EqualOneBatchNormOverTheJoinedBatch) {
  testing::expect_all_passed(testing::run_ranks(drawn_cases, {.world_size = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncBatchNormCases, ::testing::Values(1, 2, 3, 4),
                         [](const auto& each) { return std::to_string(each.param); });

constexpr int kSteps = 6;
constexpr int kBatch = 6;

struct Trained {
  std::vector<double> losses;
  torch::OrderedDict<std::string, at::Tensor> tensors;  // parameters and buffers
};

torch::OrderedDict<std::string, at::Tensor> all_of(const torch::nn::Module& module) {
  torch::OrderedDict<std::string, at::Tensor> all;
  for (const auto& item : module.named_parameters()) all.insert(item.key(), item.value());
  for (const auto& item : module.named_buffers()) all.insert(item.key(), item.value());
  return all;
}

// In double precision, so that nothing but a mistake makes the difference. `group`: whose part of the batch.
template <typename Net, typename Model>
Trained train(const Net& net, Model& model, const ProcessGroup* group, int micro_steps) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Trained trained;
  manual_seed(3);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < micro_steps; ++micro) {
      auto images = at::randn({kBatch, 1, 12, 12}, at::kDouble);
      auto labels = at::randint(0, 10, {kBatch}, at::kLong);
      if (group != nullptr) {
        const auto share = kBatch / group->size();
        images = images.narrow(0, share * group->rank(), share);
        labels = labels.narrow(0, share * group->rank(), share);
      }
      const auto loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
      if constexpr (requires { model->no_sync(); }) {
        const auto guard = micro + 1 < micro_steps ? std::optional(model->no_sync()) : std::nullopt;
        loss.backward();
      } else {
        loss.backward();
      }
      auto mean = loss.detach().clone();
      if (group != nullptr) group->all_reduce(mean, ReduceOp::AVG);
      trained.losses.push_back(mean.template item<double>());
    }
    optimizer.step();
  }
  trained.tensors = all_of(*net);
  return trained;
}

testing::ResNet18 small_resnet() {
  manual_seed(1);
  testing::ResNet18 net(4, 1);
  net->to(at::kDouble);
  return net;
}

void expect_same_training(const Context& context, int micro_steps) {
  const auto whole = small_resnet();
  auto plain = whole;
  const auto expected = train(whole, plain, nullptr, micro_steps);
  auto net = convert_sync_batchnorm(small_resnet());
  // Layers stay converted when the module's tensors are replaced, as by a move to a device.
  net->to(at::kFloat);
  net->to(at::kDouble);
  const auto fresh = small_resnet();
  for (const auto& item : fresh->named_parameters()) {
    const torch::NoGradGuard no_grad;
    net->named_parameters()[item.key()].copy_(item.value());
  }
  DistributedDataParallel ddp(net);
  const auto ours = train(net, ddp, &context.group(), micro_steps);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], expected.losses[i], 1e-9) << i;
  }
  for (const auto& item : expected.tensors) {
    const auto& tensor = ours.tensors[item.key()];
    EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), item.value().to(at::kDouble), 1e-7, 1e-8)) << item.key();
  }
}

const testing::Scenario resnet("sync batch norm: resnet", [] {
  const auto context = init();
  expect_same_training(context, 1);
});

TEST(SyncBatchNorm, AConvertedResNetMatchesTheWholeBatch) {
  testing::expect_all_passed(testing::run_ranks(resnet, {.world_size = 2}));
  testing::expect_all_passed(testing::run_ranks(resnet, {.world_size = 3}));
}

const testing::Scenario accumulated("sync batch norm: no_sync", [] {
  const auto context = init();
  expect_same_training(context, 2);
});

TEST(SyncBatchNorm, AccumulatedGradientsMatchTheWholeBatches) {
  testing::expect_all_passed(testing::run_ranks(accumulated));
}

const testing::Scenario refusals("sync batch norm: refusals", [] {
  const auto context = init();
  SyncBatchNorm layer(4);
  EXPECT_THAT([&] { layer->forward(at::zeros({4})); },
              ThrowsMessage<ArgumentError>(HasSubstr("[N, C, ...]")));
  EXPECT_THAT(
      [&] {
        layer->forward(at::zeros({2, 3}));
      },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("3 channels"), HasSubstr("4"))));
  const auto samples = context.rank() == 0 ? 1 : 0;
  EXPECT_THAT(
      [&] {
        layer->forward(at::ones({samples, 4}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("one value per channel")));
  const auto input = at::randn({3, 4}).requires_grad_();
  const auto sum = layer->forward(input).square().sum();
  EXPECT_THAT([&] { torch::autograd::grad({sum}, {input}, {}, true, true); },
              ThrowsMessage<std::exception>(HasSubstr("create_graph")));
});

TEST(SyncBatchNorm, InvalidInputIsRejected) { testing::expect_all_passed(testing::run_ranks(refusals)); }

// Nobody waits for a rank that uses a layer's tensors by itself, or evaluates.
const testing::Scenario by_itself("sync batch norm: by itself", [] {
  const auto context = init();
  torch::nn::BatchNorm1d layer = convert_sync_batchnorm(torch::nn::BatchNorm1d(2));
  if (context.rank() == 0) {
    torch::nn::functional::batch_norm(torch::ones({2, 2}), layer->running_mean, layer->running_var,
                                      torch::nn::functional::BatchNormFuncOptions()
                                          .weight(layer->weight)
                                          .bias(layer->bias)
                                          .training(false));
    layer->eval();
    layer->forward(torch::ones({2, 2}));
  }
});

TEST(SyncBatchNorm, OnlyTrainingNeedsOtherRanks) {
  testing::expect_all_passed(testing::run_ranks(by_itself));
}

// The layers of an average are a converted module's, and update_bn() is over the batches of all ranks.
const testing::Scenario averaged("sync batch norm: averaged model", [] {
  const auto context = init();
  const auto make_net = [] {
    torch::manual_seed(4);
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  };
  torch::manual_seed(5);
  const auto inputs = torch::randn({2, 6, 3});  // batches
  std::vector<at::Tensor> own;
  for (const auto& batch : inputs.unbind()) own.push_back(batch.narrow(0, 3 * context.rank(), 3));

  optim::AveragedModel here(convert_sync_batchnorm(make_net()));
  optim::AveragedModel whole(make_net());
  optim::update_bn(own, here);
  optim::update_bn(inputs.unbind(), whole);
  for (const auto& buffer : whole->named_buffers())
    EXPECT_TRUE(torch::allclose(here->named_buffers()[buffer.key()], buffer.value())) << buffer.key();
});

TEST(SyncBatchNorm, StaysSynchronizedInAnAveragedModel) {
  testing::expect_all_passed(testing::run_ranks(averaged));
}

// Statistics in fp32 of bf16 activations, and buffers that stay fp32.
const testing::Scenario mixed("sync batch norm: mixed precision", [] {
  const auto context = init();
  torch::manual_seed(2);
  testing::ResNet18 net(4, 1);
  convert_sync_batchnorm(net);
  DistributedDataParallel ddp(
      net, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
  torch::optim::SGD optimizer(ddp->parameters(), 0.05);
  torch::manual_seed(5);
  const auto images = torch::randn({kBatch, 1, 12, 12});
  const auto labels = torch::randint(0, 10, {kBatch}, at::kLong);
  const auto own = kBatch / 2 * context.rank();
  double first = 0;
  double last = 0;
  for (int step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    const auto output = ddp->forward(images.narrow(0, own, kBatch / 2));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    const auto loss =
        torch::nn::functional::cross_entropy(output.to(at::kFloat), labels.narrow(0, own, kBatch / 2));
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first / 2);
  for (const auto& item : all_of(*net)) {
    auto here = item.value().detach().to(at::kDouble);
    const auto mean = here.clone();
    context.group().all_reduce(mean, ReduceOp::AVG);
    EXPECT_TRUE(torch::equal(mean, here)) << item.key();
  }
});

TEST(SyncBatchNorm, TrainsInMixedPrecision) { testing::expect_all_passed(testing::run_ranks(mixed)); }

const testing::Scenario in_threads("sync batch norm: in threads", [] {
  spawn_threads(3, [](Context& context) { expect_same_training(context, 1); });
});

TEST(SyncBatchNorm, ThreadsMatchTheWholeBatch) {
  testing::expect_all_passed(testing::run_ranks(in_threads, {.world_size = 1}));
}

const testing::Scenario groups("sync batch norm: groups", [] {
  const auto context = init();
  const auto first = context.new_group({0, 1});
  const auto second = context.new_group({2, 3});
  SyncBatchNorm layer(torch::nn::BatchNormOptions(2).momentum(1.0), first ? first : second);
  layer->forward(at::full({2, 2}, static_cast<double>(context.rank())));
  EXPECT_NEAR(layer->running_mean[0].item<double>(), context.rank() < 2 ? 0.5 : 2.5, 1e-6);
  // In eval() no rank waits for another.
  layer->eval();
  if (context.rank() == 0) layer->forward(at::ones({2, 2}));
});

TEST(SyncBatchNorm, NormalizesWithinItsGroup) {
  testing::expect_all_passed(testing::run_ranks(groups, {.world_size = 4}));
}

}  // namespace
}  // namespace lockstep
