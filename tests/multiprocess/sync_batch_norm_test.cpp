// SPDX-License-Identifier: BSD-3-Clause
// SyncBatchNorm against one BatchNorm over the joined batch in double precision, between real processes.
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "support/ranks.h"

namespace lockstep::sync_batch_norm_test {
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
}  // namespace lockstep::sync_batch_norm_test
