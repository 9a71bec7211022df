// SPDX-License-Identifier: BSD-3-Clause
// Models that are cut over two ranks, with a GPU each or with one for both, beside the whole model on one.
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"
#include "support/temp_folder.h"

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

void require_close(const at::Tensor& own, const at::Tensor& whole, const std::string& what,
                   double tolerance = 1e-6) {
  const auto difference = (own.to(at::kDouble) - whole.to(at::kDouble)).abs().max().item<double>();
  require(difference <= tolerance, fmt::format("{} differs by {}", what, difference));
}

void pipelines(const InitOptions& options) {
  const auto context = init(options);
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
void train(const std::function<at::Tensor(const at::Tensor&)>& forward, torch::optim::Optimizer& optimizer,
           const Context& context) {
  for (int step = 0; step < 3; ++step) {
    const auto x = draw(10 + step, context.device()).chunk(2)[static_cast<std::size_t>(context.rank())];
    optimizer.zero_grad();
    forward(x).square().mean().backward();
    optimizer.step();
  }
}

const auto kSgd = torch::optim::SGDOptions(0.05).momentum(0.9);

// The parameters of one net that DistributedDataParallel has trained.
torch::nn::Sequential train_replicated(const Context& context) {
  auto net = make_layers(context.device());
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(ddp->parameters(), kSgd);
  train([&](const auto& x) { return ddp->forward(x); }, optimizer, context);
  return net;
}

void sharded(const InitOptions& init_options, const FullyShardOptions& options, double tolerance) {
  const auto context = init(init_options);
  const auto replicated = train_replicated(context);
  auto net = make_layers(context.device());
  auto of_layers = options;
  of_layers.mp_policy.output_dtype.reset();  // nothing calls the layers through an FSDPModule
  for (const auto& layer : *net)
    if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), of_layers);
  const auto shards = fully_shard(*net, options);
  torch::optim::SGD optimizer(shards.parameters(), kSgd);
  train([&](const auto& x) { return shards.forward(net, x); }, optimizer, context);
  for (const auto& shard : shards.parameters()) {
    require(shard.is_cpu() == options.offload_policy.has_value(), "where the shards are");
    require(!options.offload_policy || shard.is_pinned(), "offloaded shards are in pinned memory");
  }
  const auto state = get_model_state_dict(shards, {.full_state_dict = true});
  for (const auto& item : replicated->named_parameters())
    require_close(state.at(item.key()).as_tensor().to(context.device()), item.value().detach(), item.key(),
                  tolerance);
  context.synchronize();
}

void zero(const InitOptions& options) {
  const auto context = init(options);
  const auto replicated = train_replicated(context);
  auto net = make_layers(context.device());
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(ddp->parameters(), kSgd);
  train([&](const auto& x) { return ddp->forward(x); }, optimizer, context);
  for (const auto& item : replicated->named_parameters())
    require(net->named_parameters()[item.key()].equal(item.value()), item.key() + " has the same bits");
}

void tensor_parallel(const InitOptions& options) {
  namespace tp = lockstep::tensor_parallel;
  const auto context = init(options);
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

// The flash kernels of the GPU, in the dtypes that they have.
void context_parallel(const InitOptions& options) {
  namespace cp = lockstep::context_parallel;
  const auto context = init(options);
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"cp"}});
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const std::int64_t key_heads : {4, 2}) {
      for (const bool is_causal : {true, false}) {
        const auto name = fmt::format("{}, {} key heads, causal {}", toString(dtype), key_heads, is_causal);
        torch::manual_seed(7);
        std::vector<at::Tensor> whole, parts;
        for (const auto heads : {std::int64_t{4}, key_heads, key_heads}) {
          const auto drawn = torch::randn({2, heads, 128, 64}).to(context.device(), dtype);
          whole.push_back(drawn.to(at::kFloat).requires_grad_());
          parts.push_back(cp::shard(drawn, mesh, 2).requires_grad_());
        }
        const auto weights = torch::randn({2, 4, 128, 64}).to(context.device());
        const auto expected =
            at::scaled_dot_product_attention(whole[0], whole[1], whole[2], {}, 0.0, is_causal, {}, true);
        const auto gradients = torch::autograd::grad({(expected * weights).sum()}, whole);
        const auto output =
            cp::scaled_dot_product_attention(parts[0], parts[1], parts[2], mesh, {.is_causal = is_causal});
        require(output.scalar_type() == dtype, name + ": the output's dtype");
        require_close(cp::unshard(output.detach(), mesh, 2), expected, name + ": the output", 2e-2);
        const auto own = torch::autograd::grad({(output * cp::shard(weights, mesh, 2)).sum()}, parts);
        for (std::size_t i = 0; i < own.size(); ++i)
          require_close(cp::unshard(own[i], mesh, 2), gradients[i], fmt::format("{}: gradient {}", name, i),
                        8e-2);
      }
    }
  }
}

void experts(const InitOptions& options) {
  const auto context = init(options);
  const auto mesh = init_device_mesh({2}, {.mesh_dim_names = {"ep"}});
  const auto make = [&](const std::optional<DeviceMesh>& of) {
    torch::manual_seed(0);
    MixtureOfExperts moe(MixtureOfExpertsOptions{.dim = kWidth, .num_experts = 4, .mesh = of},
                         [] { return torch::nn::Sequential(Linear(kWidth, 32), Linear(32, kWidth)); });
    moe->to(context.device());
    return moe;
  };
  auto whole = make(std::nullopt), own = make(mesh);
  const auto x = draw(1, context.device());
  const auto expected = whole->forward(x);
  const auto found = own->forward(x);
  require_close(found.output, expected.output, "the output");
  require_close(found.aux_loss, expected.aux_loss, "aux_loss");
  (expected.output.square().mean() + expected.aux_loss).backward();
  (found.output.square().mean() + found.aux_loss).backward();
  for (const auto& item : own->named_parameters())
    require_close(item.value().grad(), whole->named_parameters()[item.key()].grad(), item.key());
}

// A run with autocast, accumulation, clipping and checkpoints that continues where another has stopped.
void trainer(const InitOptions& options) {
  const auto context = init(options);
  const auto folder = context.rank() == 0 ? std::optional<testing::TempFolder>(std::in_place) : std::nullopt;
  const auto path = context.group().broadcast_object(folder ? folder->path().string() : "", 0);
  const auto train_to = [&](std::int64_t epochs, const std::string& name, bool resume) {
    auto net = make_layers(context.device());
    DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
    optim::FusedAdamW optimizer(ddp->parameters(), 1e-3);
    torch::manual_seed(3);
    const data::TensorDataset rows(torch::randn({64, kWidth}), torch::randn({64, kWidth}));
    data::DataLoader loader(
        rows,
        {.batch_size = 4, .shuffle = true, .num_workers = 2, .pin_memory = true, .device = context.device()});
    Trainer trainer(ddp, optimizer,
                    {.epochs = epochs,
                     .accumulation_steps = 2,
                     .max_grad_norm = 1.0,
                     .autocast = at::kHalf,
                     .checkpoints = std::filesystem::path(path) / name,
                     .resume = resume});
    trainer.fit(loader, [&](auto& batch) { return torch::mse_loss(ddp->forward(batch.data), batch.target); });
    return net;
  };
  const auto straight = train_to(3, "straight", false);
  train_to(1, "continued", false);
  const auto continued = train_to(3, "continued", true);
  for (const auto& item : straight->named_parameters())
    require(continued->named_parameters()[item.key()].equal(item.value()), item.key() + " has the same bits");
  context.barrier();
}

}  // namespace

std::vector<Check> parallel_checks() {
  const InitOptions nccl{.backend = "nccl"}, shared{.share_devices = true};
  struct Named {
    std::string name, what;
    std::function<void(const InitOptions&)> run;
  };
  const MixedPrecisionPolicy low{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
  std::vector<Check> checks;
  for (const auto& each : std::vector<Named>{
           {"pipeline", "pipelines of four schedules have the gradients of the whole net", pipelines},
           {"fully_shard", "fully_shard() trains as DDP does",
            [](const auto& options) { sharded(options, {}, 1e-6); }},
           {"fully_shard_offload", "the same with shards in pinned memory of the host",
            [](const auto& options) { sharded(options, {.offload_policy = CPUOffloadPolicy{}}, 1e-6); }},
           {"fully_shard_bf16", "the same with parameters in bf16",
            [low](const auto& options) { sharded(options, {.mp_policy = low}, 5e-3); }},
           {"zero", "ZeroRedundancyOptimizer has the bits of the whole optimizer", zero},
           {"tensor_parallel", "column and row layers compute what the whole net does", tensor_parallel},
           {"context_parallel", "ring attention with the GPU's flash kernels", context_parallel},
           {"experts", "experts on two ranks compute what they do on one", experts},
           {"trainer", "Trainer with fp16, accumulation and clipping resumes bit for bit", trainer}}) {
    checks.push_back({"two_" + each.name, 2, each.what + ", over nccl", [=] { each.run(nccl); }, 2});
    checks.push_back(
        {"shared_" + each.name, 2, each.what + ", two ranks on one GPU", [=] { each.run(shared); }});
  }
  return checks;
}

}  // namespace lockstep::gpu
