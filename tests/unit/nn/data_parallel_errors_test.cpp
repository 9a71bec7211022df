// SPDX-License-Identifier: BSD-3-Clause
// What DataParallel refuses, and the errors of its replicas.
#include <concepts>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "unit/nn/cpus.h"

namespace torch::nn::parallel {
struct NameOfLibTorch {};
}  // namespace torch::nn::parallel

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::cpus;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Batch {
  at::Tensor images;
  at::Tensor mask;  // often undefined
  template <typename F>
  void visit_tensors(F&& f) {
    f(images);
    f(mask);
  }
};

struct TakesBatchImpl : torch::nn::Cloneable<TakesBatchImpl> {
  void reset() override {}
  Batch forward(const Batch& batch) { return {batch.images + 1, batch.mask}; }
  at::Tensor forward(const std::shared_ptr<Batch>& batch) { return batch->images; }
  at::Tensor forward(const c10::IValue& value) { return value.toGenericDict().at("images").toTensor(); }
};
TORCH_MODULE(TakesBatch);

TEST(DataParallel, UndefinedTensorsStayUndefined) {
  DataParallel model(TakesBatch(), {.device_ids = cpus(2)});
  const auto output = model->forward(Batch{torch::ones({3}), {}});
  EXPECT_TRUE(torch::equal(output.images, torch::full({3}, 2.)));
  EXPECT_FALSE(output.mask.defined());
}

TEST(DataParallel, RejectsSharedTensorsAndLeavesThemUnchanged) {
  DataParallel model(TakesBatch(), {.device_ids = cpus(2)});
  const auto images = torch::ones({3});
  const auto shared = std::make_shared<Batch>(Batch{images, {}});
  EXPECT_THAT([&] { model->forward(shared); }, ThrowsMessage<ArgumentError>(HasSubstr("shared_ptr")));
  EXPECT_TRUE(shared->images.is_same(images));
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  dict.insert("images", images);
  EXPECT_THAT([&] { model->forward(c10::IValue(dict)); },
              ThrowsMessage<ArgumentError>(HasSubstr("dictionary")));
}

TEST(DataParallel, RejectsSyncBatchNorm) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  DataParallel before(net, {.device_ids = cpus(2)});
  convert_sync_batchnorm(net);
  const auto expected = ThrowsMessage<ArgumentError>(AllOf(HasSubstr("SyncBatchNorm"), HasSubstr("1")));
  EXPECT_THAT([&] { DataParallel(net, {.device_ids = cpus(2)}); }, expected);
  EXPECT_THAT([&] { before->forward(torch::ones({4, 2})); }, expected);
}

struct FailingImpl : torch::nn::Cloneable<FailingImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    if (x[0].item<float>() == 2) throw std::out_of_range("no such word");
    return x;
  }
};
TORCH_MODULE(Failing);

TEST(DataParallel, RethrowsTheExceptionOfAReplicaWithItsIndex) {
  DataParallel model(Failing(), {.device_ids = cpus(3)});
  const auto call = [&] { model->forward(torch::arange(3.)); };
  EXPECT_THAT(call, ThrowsMessage<Error>(AllOf(HasSubstr("replica 2 on cpu"), HasSubstr("no such word"))));
  try {
    call();
  } catch (const Error& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
  EXPECT_TRUE(torch::equal(model->forward(torch::zeros({3})), torch::zeros({3})));
}

struct PlainImpl : torch::nn::Module {
  explicit PlainImpl(int width) { fc = register_module("fc", torch::nn::Linear(2, width)); }
  at::Tensor forward(const at::Tensor& x) { return fc->forward(x); }
  torch::nn::Linear fc{nullptr};
};

TEST(DataParallel, ModulesThatCannotBeClonedNeedAMaker) {
  const auto net = std::make_shared<PlainImpl>(3);
  EXPECT_THAT([&] { DataParallel(net, {.device_ids = cpus(2)}); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("Cloneable"), HasSubstr("make_replica"))));
  DataParallel model(net,
                     {.device_ids = cpus(2), .make_replica = [] { return std::make_shared<PlainImpl>(3); }});
  const auto input = torch::randn({4, 2});
  EXPECT_TRUE(torch::allclose(model->forward(input), net->forward(input)));
  const auto with = [&](auto maker) {
    return [&net, maker] { DataParallel(net, {.device_ids = cpus(2), .make_replica = maker}); };
  };
  EXPECT_THAT(with([net]() -> std::shared_ptr<torch::nn::Module> { return net; }),
              ThrowsMessage<ArgumentError>(HasSubstr("must make a new one")));
  EXPECT_THAT(with([]() -> std::shared_ptr<torch::nn::Module> { return torch::nn::Linear(2, 3).ptr(); }),
              ThrowsMessage<ArgumentError>(HasSubstr("type")));
}

TEST(DataParallel, RejectsTensorsThatCannotBeScattered) {
  torch::nn::Bilinear net(2, 2, 2);
  DataParallel model(net, {.device_ids = cpus(4)});
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({4, 2}), torch::ones({2, 2}));
      },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("4 parts"), HasSubstr("makes 2"))));
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({4, 2}), torch::ones({}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("no dimension 0")));
}

TEST(DataParallel, AnIntegerIsACudaDevice) {
  const DataParallelOptions options{.device_ids = {0, 1}, .output_device = 1};
  EXPECT_EQ(c10::Device(options.device_ids[0]), c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(c10::Device(options.device_ids[1]), c10::Device("cuda:1"));
  EXPECT_EQ(c10::Device(*options.output_device), c10::Device("cuda:1"));
  EXPECT_EQ(c10::Device(DeviceId(c10::Device("cpu"))), c10::Device(c10::kCPU));
  EXPECT_EQ(c10::Device(DeviceId{torch::kCUDA, 1}), c10::Device("cuda:1"));
}

static_assert(std::is_same_v<nn::parallel::NameOfLibTorch, torch::nn::parallel::NameOfLibTorch>);
static_assert(std::convertible_to<std::int64_t, DeviceId> && std::convertible_to<c10::DeviceIndex, DeviceId>);
static_assert(!std::convertible_to<bool, DeviceId> && !std::constructible_from<DeviceId, bool>);
static_assert(!std::convertible_to<double, DeviceId> && !std::constructible_from<DeviceId, float>);

TEST(DataParallel, AnIndexThatNoDeviceCanHaveIsRejected) {
  for (const std::int64_t index : {-1L, 128L, 1L << 20, 1L << 32}) {
    EXPECT_THAT([&] { DeviceId{index}; }, ThrowsMessage<ArgumentError>(HasSubstr(std::to_string(index))));
  }
}

TEST(DataParallel, AModuleOnTheCpuDoesNotFitDeviceIdsOnCuda) {
  const auto* const remedy =
      device_count(at::kCUDA) > 0 ? "must be on cuda:0" : "use {at::kCPU, at::kCPU} for two replicas";
  EXPECT_THAT(
      [] {
        DataParallel(torch::nn::Linear(2, 2), {.device_ids = {0, 1}});
      },
      ThrowsMessage<ArgumentError>(HasSubstr(remedy)));
}

}  // namespace
}  // namespace lockstep
