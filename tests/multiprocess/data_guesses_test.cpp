// SPDX-License-Identifier: BSD-3-Clause
// Datasets, samplers, loaders and lists of options as a user of PyTorch writes them first.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep {
namespace {

using data::BatchSampler, data::DataLoader, data::DistributedSampler, data::RandomSampler,
    data::SequentialSampler, data::WeightedRandomSampler;
using ::testing::ElementsAre;

// As LibTorch's tutorials write a dataset.
struct Squares : torch::data::Dataset<Squares> {
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<std::int64_t>(index);
    return {torch::full({2}, static_cast<double>(value)), torch::tensor(value * value)};
  }
  std::optional<std::size_t> size() const override { return 10; }
};

struct Pairs {
  std::tuple<at::Tensor, int> get(std::size_t index) const {
    return {torch::full({2}, static_cast<double>(index)), static_cast<int>(index)};
  }
  std::int64_t size() const { return 10; }
};

struct Padded : Pairs {
  at::Tensor collate(const std::vector<std::tuple<at::Tensor, int>>& samples) const {
    return torch::full({1}, static_cast<std::int64_t>(samples.size()), torch::kLong);
  }
};

TEST(Guesses, DatasetsWithGetAndSize) {
  for (const int workers : {0, 2}) {
    std::vector<std::int64_t> squares;
    for (auto& [x, y] : DataLoader(Squares(), {.batch_size = 4, .num_workers = workers})) {
      EXPECT_TRUE(x.select(1, 0).square().equal(y.to(torch::kFloat)));
      for (std::int64_t i = 0; i < y.size(0); ++i) squares.push_back(y[i].item<std::int64_t>());
    }
    EXPECT_THAT(squares, ElementsAre(0, 1, 4, 9, 16, 25, 36, 49, 64, 81));
  }
  DataLoader pairs(Pairs(), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(pairs.size(), 2);
  for (auto& [x, y] : pairs) EXPECT_TRUE(x.select(1, 1).to(torch::kLong).equal(y));
  for (auto& sizes : DataLoader(Padded(), {.batch_size = 5})) EXPECT_EQ(sizes.item<std::int64_t>(), 5);
}

TEST(Guesses, SamplersByValueAndWithPositions) {
  const Pairs dataset;
  DistributedSampler sampler(dataset, 2, 0);
  DataLoader loader(dataset, {.batch_size = 5, .sampler = sampler});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& [x, y] : loader)
      EXPECT_TRUE(y.equal(sampler.indices())) << "set_epoch() did not reach the loader";
  }
  BatchSampler batches(SequentialSampler(dataset), 4, true);
  EXPECT_EQ(DataLoader(dataset, {.batch_sampler = batches}).size(), 2);
  EXPECT_EQ(RandomSampler(Squares()).size(), 10) << "whose size() is optional";
  EXPECT_EQ(BatchSampler(RandomSampler(dataset, true, 7), 4, false).size(), 2);
  EXPECT_EQ(WeightedRandomSampler({0.1, 0.9}, 4, true).size(), 4);
  EXPECT_EQ(WeightedRandomSampler(torch::ones({3}), 2, false).size(), 2);
}

TEST(Guesses, DatasetsOfDifferentTypesOneBehindTheOther) {
  const data::TensorDataset tensors(torch::zeros({2, 2}), torch::tensor({7, 8}));
  const data::ConcatDataset both(tensors, data::Subset(Pairs(), {3}), Pairs());
  const data::Batch batch = both.get_batch(torch::tensor({2, 0, 4}));
  EXPECT_TRUE(batch.target.equal(torch::tensor({3, 7, 1})));
  EXPECT_TRUE(batch.data.select(1, 0).equal(torch::tensor({3.F, 0.F, 1.F})));
  const data::ConcatDataset turned{Pairs(), tensors};
  const auto [x, y] = turned.get_batch(torch::tensor({11, 0}));
  EXPECT_TRUE(y.equal(torch::tensor({8, 0})));
}

TEST(Guesses, NormalizeByName) {
  const auto image = torch::rand({3, 2, 2});
  const auto named = transforms::Normalize({.mean = {0.5, 0.4, 0.3}, .std = {0.25, 0.5, 1}});
  EXPECT_TRUE(named(image).equal(transforms::Normalize({0.5, 0.4, 0.3}, {0.25, 0.5, 1})(image)));
  EXPECT_EQ(transforms::Compose({transforms::ToTensor(), named}).to_string(),
            transforms::Compose(transforms::ToTensor(), named).to_string());
}

// In LibTorch the assignment alone would leave the old layer among the parameters.
TEST(Guesses, AnAssignedLayerIsAPartOfTheNet) {
  auto net = models::resnet18({.num_classes = 5});
  const auto count = net->named_parameters().size();
  net->fc = nn::Linear(net->fc->options.in_features(), 3);
  net->conv1 = nn::Conv2d(nn::Conv2dOptions(1, 64, 3).padding(1).bias(false));
  const auto parameters = net->named_parameters();
  EXPECT_EQ(parameters.size(), count);
  EXPECT_TRUE(parameters["fc.weight"].is_same(net->fc->weight));
  EXPECT_TRUE(parameters["conv1.weight"].is_same(net->conv1->weight));
  EXPECT_EQ(state_dict(net)["fc.bias"].as_tensor().numel(), 3);
  EXPECT_THROW(net->fc = nullptr, ArgumentError);
  EXPECT_TRUE(net->named_children()["fc"].get() == net->fc.get());

  // A clone has layers of its own, and so has a copy of its old one.
  const auto copy = std::dynamic_pointer_cast<models::ResNetImpl>(net->clone());
  copy->fc = nn::Linear(512, 7);
  EXPECT_EQ(copy->named_parameters()["fc.bias"].numel(), 7);
  EXPECT_EQ(net->named_parameters()["fc.bias"].numel(), 3);
  EXPECT_TRUE(net->named_parameters()["fc.bias"].is_same(net->fc->bias));
  models::ResNetImpl plain(*net);
  EXPECT_THAT([&] { plain.fc = nn::Linear(512, 9); },
              ::testing::ThrowsMessage<ArgumentError>(::testing::HasSubstr("call clone()")));
  EXPECT_THROW(net->fc = decltype(net->fc)(), ArgumentError) << "an empty layer of the same type";
  EXPECT_EQ(net->named_parameters()["fc.bias"].numel(), 3);

  auto vit = models::vit_tiny_16({.image_size = 32, .num_classes = 5});
  vit->heads->head = nn::Linear(192, 3);
  EXPECT_EQ(vit->forward(torch::rand({1, 3, 32, 32})).size(1), 3);
  const auto twin = std::dynamic_pointer_cast<models::VisionTransformerImpl>(vit->clone());
  twin->heads->head = nn::Linear(192, 2);
  EXPECT_EQ(twin->named_parameters()["heads.head.bias"].numel(), 2);
  EXPECT_EQ(vit->named_parameters()["heads.head.bias"].numel(), 3);
}

TEST(Guesses, NamesOfTorchUtils) {
  static_assert(std::is_same_v<utils::tensorboard::SummaryWriter, SummaryWriter>);
  static_assert(std::is_same_v<utils::data::TensorDataset, data::TensorDataset>);
  static_assert(!std::is_same_v<models::ResNet18_Weights, models::PretrainedWeights>);
}

TEST(Guesses, AttributesOfALoader) {
  const Pairs dataset;
  DataLoader loader(dataset,
                    {.batch_size = 5, .sampler = DistributedSampler(dataset, 2, 0), .num_workers = 1});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.sampler().set_epoch(epoch);
    EXPECT_EQ(loader.position().epoch, epoch);
    for (auto& [x, y] : loader) EXPECT_TRUE(y.equal(loader.sampler().indices()));
  }
  EXPECT_EQ(loader.batch_size() * loader.size(), 5);
  EXPECT_EQ(loader.num_workers(), 1);
  EXPECT_EQ(loader.dataset().size(), 10);
  EXPECT_FALSE(loader.drop_last() || loader.pin_memory());
  DataLoader of_batches(dataset, {.batch_sampler = BatchSampler(SequentialSampler(dataset), 4, true)});
  EXPECT_EQ(of_batches.batch_size(), 4);
  EXPECT_TRUE(of_batches.drop_last());
  EXPECT_EQ(of_batches.sampler().size(), 10);
}

TEST(Guesses, LogFunctionsOfPython) {
  ::testing::internal::CaptureStderr();
  logging::info("epoch ", 3, ": loss ", 0.5);
  logging::info(42);
  logging::info(std::string("100% of "), torch::tensor(2).item<int>());
  char buffer[] = "hi";  // NOLINT: as snprintf() takes it
  logging::info(buffer);
  log(LogLevel::warning, "rank ", 1);
  logging::error("end");
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "[lockstep] epoch 3: loss 0.5\n[lockstep] 42\n[lockstep] 100% of 2\n[lockstep] hi\n[lockstep] warning: rank 1\n"
      "[lockstep] error: end\n");
}

// Options take PyTorch's arguments in PyTorch's order.
TEST(Guesses, OrderOfDesignators) {
  const InitOptions init_options{.backend = "gloo",
                                 .init_method = "env://",
                                 .timeout = 30,
                                 .world_size = 2,
                                 .rank = 0,
                                 .store = {},
                                 .group_name = "train"};
  EXPECT_EQ(init_options.world_size, 2);
  const data::DataLoaderOptions loader{.batch_size = 4,
                                       .shuffle = true,
                                       .sampler = nullptr,
                                       .batch_sampler = nullptr,
                                       .num_workers = 2,
                                       .collate_fn = nullptr,
                                       .pin_memory = true,
                                       .drop_last = true,
                                       .timeout = 30,
                                       .worker_init_fn = {},
                                       .generator = {},
                                       .prefetch_factor = 2,
                                       .persistent_workers = true,
                                       .in_order = true};
  EXPECT_EQ(loader.num_workers, 2);
  const DistributedDataParallelOptions ddp{.device_ids = {0},
                                           .output_device = 0,
                                           .broadcast_buffers = true,
                                           .init_sync = true,
                                           .process_group = {},
                                           .bucket_cap_mb = 25,
                                           .find_unused_parameters = true,
                                           .gradient_as_bucket_view = true,
                                           .static_graph = true,
                                           .delay_all_reduce_named_params = {},
                                           .param_to_hook_all_reduce = {},
                                           .mixed_precision = {},
                                           .skip_all_reduce_unused_params = true,
                                           .bucket_cap_mb_list = {},
                                           .batched_grad_copy = true,
                                           .forward_sync_buffers = true,
                                           .lazy_bucket_allocation = true};
  EXPECT_EQ(ddp.device_ids.size(), 1U);
  const data::MNISTOptions mnist{.train = true, .transform = {}, .target_transform = {}, .download = true};
  EXPECT_TRUE(mnist.download);
  const data::DistributedSamplerOptions sampler{
      .num_replicas = 2, .rank = 0, .shuffle = true, .seed = 1, .drop_last = true};
  EXPECT_EQ(sampler.seed, 1);
}

}  // namespace
}  // namespace lockstep
