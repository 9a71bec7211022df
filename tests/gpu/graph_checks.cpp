// SPDX-License-Identifier: BSD-3-Clause
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"
#include "graphs/graph_phase.h"
#include "parity/models/gpt.h"
#include "parity/models/resnet.h"

namespace lockstep::gpu {
namespace {

namespace F = torch::nn::functional;
using Tensors = GraphedStep::Tensors;

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  GraphedStepStats stats;
};

Result train(const Context& context, bool graphed, int steps) {
  torch::manual_seed(0);
  at::globalContext().setDeterministicCuDNN(true);
  testing::ResNet18 net(16);
  net->to(context.device());
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  ddp->register_comm_hook(allreduce_hook);  // makes DDP reduce with one rank too
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  GraphedStep step(context.device(),
                   [&](const Tensors& batch) -> Tensors {
                     optimizer.zero_grad();
                     auto loss = F::cross_entropy(ddp->forward(batch[0]), batch[1]);
                     loss.backward();
                     optimizer.step();
                     return {loss};
                   },
                   {.optimizers = {&optimizer}, .modules = {ddp}, .warmup = 11, .enabled = graphed});
  Result result;
  for (int i = 0; i < steps; ++i) {
    // The last batch of an epoch is smaller.
    const std::int64_t size = i % 20 == 19 ? 8 : 16;
    const auto x = torch::randn({size, 3, 32, 32}).to(context.device());
    const auto y = torch::randint(10, {size}, at::kLong).to(context.device());
    result.losses.push_back(step({x, y})[0].item<double>());
  }
  for (const auto& parameter : net->parameters()) result.weights.push_back(parameter.detach().clone());
  result.stats = step.stats();
  return result;
}

void a_graph_is_the_step(const std::string& backend) {
  const auto context = init({.backend = backend});
  const auto eager = train(context, false, 60);
  const auto graphed = train(context, true, 60);
  require(graphed.stats.replays > 30, "most steps were replays");
  require(eager.losses == graphed.losses, "replayed steps have the losses of eager ones");
  for (std::size_t i = 0; i < eager.weights.size(); ++i) {
    require(torch::equal(eager.weights[i], graphed.weights[i]), "and leave the same weights");
  }
}

// With what keeps all of its state on the device: the optimizer, its rate, the scaler.
Result train_gpt(const Context& context, bool graphed, int steps) {
  torch::manual_seed(0);
  const auto device = context.device();
  testing::Gpt net(testing::GptOptions{});
  net->to(device);
  DistributedDataParallel ddp(net, {.device_ids = {device}});
  ddp->register_comm_hook(allreduce_hook);
  const auto on_device = at::TensorOptions().device(device);
  optim::FusedAdamW optimizer(ddp->parameters(), optim::FusedAdamWOptions(at::full({}, 0.01, on_device)));
  amp::GradScaler scaler(device, {.init_scale = 1e8, .growth_interval = 20});
  GraphedStep step(device,
                   [&](const Tensors& batch) -> Tensors {
                     optimizer.zero_grad();
                     at::Tensor loss;
                     {
                       const amp::Autocast autocast(device);
                       const auto logits = ddp->forward(batch[0]);
                       loss = F::cross_entropy(logits.flatten(0, 1).to(at::kFloat), batch[0].flatten());
                     }
                     scaler.scale(loss).backward();
                     scaler.step(optimizer);
                     scaler.update();
                     return {loss};
                   },
                   {.optimizers = {&optimizer}, .modules = {ddp}, .enabled = graphed});
  Result result;
  for (int i = 0; i < steps; ++i) {
    if (i % 10 == 9) optimizer.param_groups()[0].options().set_lr(0.01 / (1 + 0.02 * i));
    const auto ids = torch::randint(64, {4, 16}, at::kLong).to(device);
    result.losses.push_back(step({ids})[0].item<double>());
  }
  for (const auto& parameter : ddp->parameters()) result.weights.push_back(parameter.detach().clone());
  result.weights.push_back(at::full({}, scaler.get_scale()));
  result.stats = step.stats();
  return result;
}

void a_graph_holds_optimizer_and_scaler() {
  const auto context = init({.backend = "nccl"});
  const auto eager = train_gpt(context, false, 100);
  const auto graphed = train_gpt(context, true, 100);
  require(graphed.stats.captures == 1 && graphed.stats.replays == 97, "changed rates need no new capture");
  require(eager.losses == graphed.losses, "replayed steps have the losses of eager ones");
  for (std::size_t i = 0; i < eager.weights.size(); ++i) {
    require(torch::equal(eager.weights[i], graphed.weights[i]), "and leave the same weights and scale");
  }
  require(graphed.losses.back() < graphed.losses.front() / 2, "the loss falls");
}

void what_cannot_be_captured() {
  const auto context = init({.backend = "nccl"});
  const auto device = context.device();
  const auto x = torch::ones({8}, torch::TensorOptions().device(device));
  GraphedStep waits(device, [](const Tensors& in) -> Tensors { return {in[0] * in[0].sum().item<float>()}; });
  const auto call_often = [&](GraphedStep& step) {
    for (int i = 0; i < 6; ++i) step({x});
  };
  require_error([&] { call_often(waits); }, "GraphedStep");
  // Failures that occur only during a capture: an exception of the step, and an unexpected wait.
  GraphedStep throws(device, [](const Tensors& in) -> Tensors {
    if (graph_phase() == GraphPhase::capture) throw Error("of the step");
    return {in[0] * 2};
  });
  require_error([&] { call_often(throws); }, "of the step");
  GraphedStep hidden(device, [&](const Tensors& in) -> Tensors {
    if (graph_phase() == GraphPhase::capture) synchronize(device);
    return {in[0] * 2};
  });
  for (int attempt = 0; attempt < 3; ++attempt) require_error([&] { call_often(hidden); }, "capturing");
  torch::manual_seed(3);
  const auto drawn = torch::randn({8}, torch::TensorOptions().device(device));
  torch::manual_seed(3);
  require(torch::equal(drawn, torch::randn({8}, torch::TensorOptions().device(device))),
          "the generator works on after captures that failed");
  auto sum = torch::ones({8}, torch::TensorOptions().device(device));
  context.group().all_reduce(sum);
  require(torch::equal(sum.cpu(), torch::ones({8})), "and so does the group");
  const auto pinned = torch::ones({1000}).pin_memory();
  GraphedStep good(device, [](const Tensors& in) -> Tensors { return {in[0] * 2}; });
  call_often(good);
  good.reset();  // captured again when no earlier graph is left
  call_often(good);
  require(good.stats().captures == 2, "a step is captured again");
  require(good.stats().replays > 0 && torch::equal(good({x})[0].cpu(), torch::full({8}, 2.0F)),
          "others are captured");
  require(torch::equal(torch::ones({1000}).pin_memory(), pinned), "memory is pinned");
}

// What is alive of an earlier forward keeps DDP's gradients on another stream.
void a_kept_loss_is_named() {
  const auto context = init({.backend = "nccl"});
  torch::nn::Linear net(4, 4);
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  ddp->register_comm_hook(allreduce_hook);
  const auto x = torch::ones({2, 4}, torch::TensorOptions().device(context.device()));
  auto kept = ddp->forward(x).sum();
  kept.backward({}, /*retain_graph=*/true);
  GraphedStep step(context.device(),
                   [&](const Tensors& in) -> Tensors {
                     net->zero_grad();
                     const auto loss = ddp->forward(in[0]).sum();
                     loss.backward();
                     return {loss};
                   },
                   {.modules = {ddp}, .warmup = 11});
  require_error([&] { step({x}); }, "a tensor of an earlier forward is alive");
  kept = at::Tensor();
  for (int i = 0; i < 14; ++i) step({x});
  require(step.stats().replays == 3, "without it the step is captured");
}

// NCCL does not close while a graph holds calls of it.
void a_graph_outlives_its_group() {
  auto context = std::make_unique<Context>(init({.backend = "nccl"}));
  const auto x = torch::ones({8}, torch::TensorOptions().device(context->device()));
  GraphedStep step(context->device(), [&](const Tensors& in) -> Tensors {
    auto y = in[0] * 2;
    if (context) context->group().all_reduce(y);
    return {y};
  });
  for (int i = 0; i < 6; ++i) step({x});
  require(step.stats().replays > 0, "the step was captured");
  context.reset();
  require_error([&] { step({x}); }, "which is closed");
}

void shared_is_refused() {
  const auto context = init({.share_devices = true});
  const auto x = torch::ones({8}, torch::TensorOptions().device(context.device()));
  GraphedStep step(context.device(), [&](const Tensors& in) -> Tensors {
    auto y = in[0] * 2;
    context.group().all_reduce(y);
    return {y};
  });
  require_error(
      [&] {
        for (int i = 0; i < 6; ++i) step({x});
      },
      "captured");
}

}  // namespace

std::vector<Check> graph_checks() {
  return {
      {"graph", 1, "a captured step with DDP over nccl equals the eager one",
       [] { a_graph_is_the_step("nccl"); }},
      {"graph_auto", 1, "the same with nccl and shm in one group", [] { a_graph_is_the_step("auto"); }},
      {"graph_adamw", 1, "a step with FusedAdamW, its rate in a tensor and a GradScaler is one graph",
       a_graph_holds_optimizer_and_scaler},
      {"two_graph", 2, "captured steps of two ranks with a GPU each", [] { a_graph_is_the_step("auto"); }, 2},
      {"two_graph_adamw", 2, "the same with FusedAdamW and a GradScaler", a_graph_holds_optimizer_and_scaler,
       2},
      {"graph_errors", 1, "a step that cannot be captured is an error, and the device keeps working",
       what_cannot_be_captured},
      {"graph_kept_loss", 1, "the reason why DDP cannot be captured is named", a_kept_loss_is_named},
      {"graph_outlives", 1, "a group closes although a graph holds its calls", a_graph_outlives_its_group},
      {"graph_shared", 2, "collectives through host memory cannot be captured", shared_is_refused},
  };
}

}  // namespace lockstep::gpu
