// SPDX-License-Identifier: BSD-3-Clause
// Models that are cut over two ranks with a GPU each, beside the whole model on one.
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "gpu/check.h"

namespace lockstep::gpu {
namespace {

using torch::nn::Linear;

constexpr std::int64_t kWidth = 64;

torch::nn::Sequential make_layers(const at::Device& device) {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int layer = 0; layer < 4; ++layer) {
    net->push_back(Linear(kWidth, kWidth));
    net->push_back(torch::nn::Tanh());
  }
  net->to(device);
  return net;
}

// The same on both ranks.
at::Tensor draw(std::int64_t seed, const at::Device& device) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::randn({16, kWidth}).to(device);
}

void require_close(const at::Tensor& own, const at::Tensor& whole, const std::string& what) {
  const auto difference = (own - whole).abs().max().item<double>();
  require(difference <= 1e-6, fmt::format("{} differs by {}", what, difference));
}

void pipelines() {
  const auto context = init({.backend = "nccl"});
  const auto device = context.device();
  constexpr int kMicrobatches = 4;
  const auto x = draw(1, device), y = draw(2, device);
  auto whole = make_layers(device);
  torch::mse_loss(whole->forward(x), y).backward();
  for (const auto& [name, local_stages] : {std::pair{"GPipe", 1}, std::pair{"1F1B", 1},
                                           std::pair{"Interleaved1F1B", 2}, std::pair{"ZBVZeroBubble", 2}}) {
    auto net = make_layers(device);
    const auto plan = pipelining::make_plan(name, context.world_size(), local_stages, kMicrobatches);
    const auto parts = pipelining::split_sequential(net, plan.num_stages);
    const auto rank_of = pipelining::stage_to_rank(plan);
    std::vector<pipelining::PipelineStage> stages;
    for (int i = 0; i < plan.num_stages; ++i) {
      const auto index = static_cast<std::size_t>(i);
      if (rank_of[index] == context.rank()) stages.emplace_back(parts[index], i, plan.num_stages);
    }
    pipelining::PipelineSchedule schedule(
        stages, plan, [](const auto& output, const auto& target) { return torch::mse_loss(output, target); });
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      schedule.step({x}, y);
    }
    std::size_t compared = 0;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      const auto gradient = net->parameters()[i].grad();
      if (!gradient.defined()) continue;
      require_close(gradient, whole->parameters()[i].grad(), fmt::format("{}: gradient {}", name, i));
      ++compared;
    }
    require(compared == net->parameters().size() / 2, "each rank has the gradients of its stages");
  }
  context.synchronize();
}

// Three steps of SGD on the rows of each rank.
template <typename Module>
void train(Module& module, const std::vector<at::Tensor>& parameters, const Context& context) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    const auto x = draw(10 + step, context.device()).chunk(2)[static_cast<std::size_t>(context.rank())];
    optimizer.zero_grad();
    module->forward(x).square().mean().backward();
    optimizer.step();
  }
}

void sharded() {
  const auto context = init({.backend = "nccl"});
  auto replicated = make_layers(context.device());
  DistributedDataParallel ddp(replicated, {.device = context.device()});
  train(ddp, ddp->parameters(), context);
  auto net = make_layers(context.device());
  for (const auto& layer : *net)
    if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr());
  const auto shards = fully_shard(*net);
  train(net, shards.parameters(), context);
  const auto state = get_model_state_dict(shards, {.full_state_dict = true});
  for (const auto& item : replicated->named_parameters())
    require_close(state.at(item.key()).as_tensor().to(context.device()), item.value().detach(), item.key());
  context.synchronize();
}

void tensor_parallel() {
  namespace tp = lockstep::tensor_parallel;
  const auto context = init({.backend = "nccl"});
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"tp"}});
  const auto x = draw(1, context.device());
  auto whole = make_layers(context.device());
  const auto expected = whole->forward(x);
  expected.square().mean().backward();
  auto net = make_layers(context.device());
  tp::parallelize_module(*net, mesh,
                         {{"0", tp::ColwiseParallel()},
                          {"2", tp::RowwiseParallel()},
                          {"4", tp::ColwiseParallel()},
                          {"6", tp::RowwiseParallel()}});
  const auto output = net->forward(x);
  require_close(output, expected, "the output");
  output.square().mean().backward();
  const auto rows = whole->named_parameters()["0.weight"].grad().chunk(2);
  require_close(net->named_parameters()["0.weight"].grad(), rows[static_cast<std::size_t>(context.rank())],
                "the gradient of a column layer");
  context.synchronize();
}

}  // namespace

std::vector<Check> parallel_checks() {
  return {
      {"two_pipeline", 2, "pipelines of four schedules over nccl have the gradients of the whole net",
       pipelines, 2},
      {"two_fully_shard", 2, "fully_shard() over nccl trains as DDP does", sharded, 2},
      {"two_tensor_parallel", 2, "column and row layers over nccl compute what the whole net does",
       tensor_parallel, 2},
  };
}

}  // namespace lockstep::gpu
