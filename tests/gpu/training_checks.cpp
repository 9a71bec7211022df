// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"
#include "parity/models/gpt.h"
#include "parity/models/resnet.h"

namespace lockstep::gpu {
namespace {

namespace F = torch::nn::functional;

struct Run {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;  // on the CPU
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

std::vector<at::Tensor> weights_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> weights;
  for (const auto& parameter : net.parameters()) weights.push_back(parameter.detach().cpu().clone());
  return weights;
}

// Steps on the batches [i]; each rank has its rows of them.
template <typename Net, typename Step>
Run train(const Net& net, const std::vector<at::Tensor>& images, const std::vector<at::Tensor>& labels,
          Step step) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  Run run;
  for (std::size_t i = 0; i < images.size(); ++i) {
    optimizer.zero_grad();
    run.losses.push_back(step(images[i], labels[i]));
    optimizer.step();
  }
  run.weights = weights_of(*net);
  return run;
}

struct Batches {
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> labels;
};

Batches draw_batches(std::int64_t count, std::int64_t size, const c10::Device& device) {
  torch::manual_seed(7);
  Batches batches;
  for (std::int64_t i = 0; i < count; ++i) {
    batches.images.push_back(torch::randn({size, 3, 32, 32}).to(device));
    batches.labels.push_back(torch::randint(10, {size}, at::kLong).to(device));
  }
  return batches;
}

void be_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

Run train_ddp(const Context& context, const Batches& batches) {
  torch::manual_seed(0);
  testing::ResNet18 net(16);
  net->to(context.device());
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  ddp->register_comm_hook(allreduce_hook);  // makes DDP reduce with one rank too
  return train(net, batches.images, batches.labels, [&](const at::Tensor& x, const at::Tensor& y) {
    const auto rows = x.size(0) / context.world_size();
    auto loss = F::cross_entropy(ddp->forward(x.narrow(0, rows * context.rank(), rows)),
                                 y.narrow(0, rows * context.rank(), rows));
    loss.backward();
    return loss.item<double>();
  });
}

// One rank over nccl computes what the bare module does, bit for bit.
void ddp_is_the_bare_module() {
  be_deterministic();
  const auto context = init({.backend = "nccl"});
  const auto batches = draw_batches(10, 16, context.device());
  torch::manual_seed(0);
  testing::ResNet18 bare(16);
  bare->to(context.device());
  const auto expected =
      train(bare, batches.images, batches.labels, [&](const at::Tensor& x, const at::Tensor& y) {
        auto loss = F::cross_entropy(bare->forward(x), y);
        loss.backward();
        return loss.item<double>();
      });
  const auto actual = train_ddp(context, batches);
  require(actual.losses == expected.losses, "DDP over nccl has the bare module's losses");
  require(equal(actual.weights, expected.weights), "and weights");
}

// The user's own stream: gradients are ready there when backward returns.
void own_stream() {
  be_deterministic();
  const auto context = init();
  const auto batches = draw_batches(10, 16, context.device());
  const auto expected = train_ddp(context, batches);
  context.synchronize();
  const c10::impl::VirtualGuardImpl devices(context.device().type());
  const auto stream = devices.getStreamFromGlobalPool(context.device());
  Run actual;
  {
    const c10::StreamGuard guard(stream);
    actual = train_ddp(context, batches);
  }
  context.synchronize();
  require(actual.losses == expected.losses && equal(actual.weights, expected.weights),
          "training on a stream of one's own gives the same bits");
}

// Memory that is freed right after an asynchronous call is not given to others before the call has ended: the
// copy that a gather makes, behind a device that sleeps, would land in what was allocated next.
void memory_is_kept() {
  const auto context = init();
  const auto options = torch::TensorOptions().device(context.device());
  const auto ones = torch::ones({1'000'000}, options);
  for (int round = 0; round < 20; ++round) {
    at::cuda::sleep(20'000'000);
    auto work = context.group().all_gather_into_tensor_async(
        torch::empty({context.world_size() * 1'000'000}, options), ones);
    work = {};
    const auto other = torch::full({1'000'000}, -1, options);
    context.synchronize();
    require((other == -1).all().item<bool>(), "memory is as it was set");
  }
}

// Buckets lie in memory that the group has given, and gradients are views of them.
void gradients_outlive_the_group() {
  torch::nn::Linear net(100, 100);
  {
    const auto context = init();
    net->to(context.device());
    DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
    ddp->register_comm_hook(allreduce_hook);
    ddp->forward(torch::ones({2, 100}, torch::TensorOptions().device(context.device()))).sum().backward();
    context.synchronize();
  }
  require(torch::equal(net->bias.grad().cpu(), torch::full({100}, 2.0F)),
          "gradients are there without the group");
}

// Two ranks end with the same weights, which are those of one rank with all rows up to rounding.
void ddp_of_two(const InitOptions& options) {
  be_deterministic();
  const auto context = init(options);
  const auto batches = draw_batches(3, 16, context.device());
  const auto train_mlp = [&](auto& model, const torch::nn::Sequential& net, int parts, int part) {
    return train(net, batches.images, batches.labels, [&](const at::Tensor& x, const at::Tensor& y) {
      const auto rows = x.size(0) / parts;
      auto loss = F::cross_entropy(model->forward(x.narrow(0, rows * part, rows).flatten(1)),
                                   y.narrow(0, rows * part, rows));
      loss.backward();
      return loss.template item<double>();
    });
  };
  const auto make = [&] {
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(3072, 64), torch::nn::Tanh(), torch::nn::Linear(64, 10));
    net->to(context.device());
    return net;
  };
  auto whole_net = make();
  const auto whole = train_mlp(whole_net, whole_net, 1, 0);
  auto net = make();
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  const auto run = train_mlp(ddp, net, context.world_size(), context.rank());
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    const auto all = context.group().all_gather_object(save_bytes(Value(run.weights[i])));
    require(all[0] == all[1], "all ranks have the same weights");
    require(torch::allclose(run.weights[i], whole.weights[i], 1e-4, 1e-5), "those of one rank with all rows");
  }
}

void sync_batch_norm_of_two(const InitOptions& options) {
  const auto context = init(options);
  torch::manual_seed(3);
  const auto whole = torch::randn({8, 4, 5, 5});
  torch::nn::BatchNorm2d plain(4);
  const auto expected = plain->forward(whole);
  SyncBatchNorm synced(4);
  synced->to(context.device());
  const auto actual = synced->forward(whole.narrow(0, 4 * context.rank(), 4).to(context.device())).cpu();
  require(torch::allclose(actual, expected.narrow(0, 4 * context.rank(), 4), 1e-5, 1e-5),
          "SyncBatchNorm normalizes over both ranks' rows");
  require(torch::allclose(synced->running_mean.cpu(), plain->running_mean, 1e-5, 1e-6),
          "and keeps their mean");
}

// An inf in a scaled gradient skips the step and halves the scale; fp16 then trains.
void mixed_precision() {
  const auto context = init();
  torch::manual_seed(0);
  testing::Gpt net(testing::GptOptions{});
  net->to(context.device());
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  amp::GradScaler scaler(context.device(), {.init_scale = 1e15, .growth_interval = 1000});
  const auto ids = torch::randint(64, {4, 16}, at::kLong).to(context.device());
  std::vector<double> losses;
  int skipped = 0;
  for (int i = 0; i < 300; ++i) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast autocast(context.device());
      const auto logits = ddp->forward(ids);
      require(logits.scalar_type() == at::kHalf, "autocast computes in fp16");
      loss = F::cross_entropy(logits.flatten(0, 1).to(at::kFloat), ids.flatten());
    }
    scaler.scale(loss).backward();
    skipped += scaler.step(optimizer) ? 0 : 1;
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  require(skipped > 5 && skipped < 100, fmt::format("{} steps were skipped while the scale fell", skipped));
  require(losses.back() < losses.front() / 2, "the loss falls");
}

// On the GPUs that there are: what it gives is the bare module's up to rounding.
void data_parallel() {
  const auto make = [] {
    torch::manual_seed(0);
    return torch::nn::Sequential(torch::nn::Conv2d(3, 8, 3), torch::nn::Tanh(), torch::nn::Flatten(),
                                 torch::nn::Linear(8 * 30 * 30, 4));
  };
  const c10::Device first(c10::kCUDA, 0);
  auto bare = make();
  bare->to(first);
  auto net = make();
  net->to(first);
  DataParallel parallel(net, {.make_replica = [&] { return make().ptr(); }});
  const auto x = torch::randn({8, 3, 32, 32}, first);
  const auto expected = bare->forward(x);
  const auto actual = parallel->forward(x);
  require(actual.device() == first && torch::allclose(actual, expected, 1e-4, 1e-5),
          "outputs are the bare module's");
  expected.pow(2).sum().backward();
  actual.pow(2).sum().backward();
  for (std::size_t i = 0; i < bare->parameters().size(); ++i) {
    require(torch::allclose(net->parameters()[i].grad(), bare->parameters()[i].grad(), 1e-3, 1e-4),
            "gradients are the bare module's");
  }
}

// Its graph of neighbours is made on the device.
void dgcnn_is_that_of_the_cpu() {
  torch::manual_seed(0);
  models::DGCNN net(models::DGCNNOptions{.output_channels = 5, .k = 6, .emb_dims = 64});
  net->eval();
  const auto points = torch::randn({2, 3, 32});
  const auto expected = net->forward(points);
  net->to(at::kCUDA);
  const auto output = net->forward(points.to(at::kCUDA));
  output.square().mean().backward();
  require(torch::allclose(output.cpu(), expected, 1e-4, 1e-4), "the outputs are those of the CPU");
  require(net->parameters().front().grad().isfinite().all().item<bool>(), "the gradients are finite");
}

}  // namespace

std::vector<Check> training_checks() {
  return {
      {"ddp", 1, "DDP over nccl equals the bare module bit for bit", ddp_is_the_bare_module},
      {"own_stream", 1, "DDP on a stream of the user", own_stream},
      {"memory", 1, "freed memory of calls in progress is not reused too early", memory_is_kept},
      {"gradients", 1, "gradients outlive the group", gradients_outlive_the_group},
      {"shared_ddp", 2, "DDP of two ranks on one GPU", [] { ddp_of_two({.share_devices = true}); }},
      {"shared_sync_batch_norm", 2, "SyncBatchNorm of two ranks on one GPU",
       [] { sync_batch_norm_of_two({.share_devices = true}); }},
      {"two_ddp", 2, "DDP of two ranks with a GPU each", [] { ddp_of_two({}); }, 2},
      {"two_sync_batch_norm", 2, "SyncBatchNorm of two ranks with a GPU each",
       [] { sync_batch_norm_of_two({}); }, 2},
      {"two_memory", 2, "freed memory of calls in progress, with a GPU each", memory_is_kept, 2},
      {"two_own_stream", 2, "DDP on streams of the user, with a GPU each", own_stream, 2},
      {"two_amp", 2, "fp16 autocast and GradScaler with DDP, with a GPU each", mixed_precision, 2},
      {"amp", 1, "fp16 autocast and GradScaler with DDP", mixed_precision},
      {"data_parallel", 1, "DataParallel on one GPU", data_parallel},
      {"dgcnn", 1, "DGCNN computes what it computes on the CPU", dgcnn_is_that_of_the_cpu},
      {"two_data_parallel", 1, "DataParallel on two GPUs", data_parallel, 2},
  };
}

}  // namespace lockstep::gpu
