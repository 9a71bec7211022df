// SPDX-License-Identifier: BSD-3-Clause
// Every option of DistributedDataParallel on a GPU against the same on the CPU, in one group.
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"

namespace lockstep::gpu {
namespace {

constexpr int kSteps = 6;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool sparse)
      : words(register_module("words",
                              torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 16).sparse(sparse)))) {}
  at::Tensor forward(const at::Tensor& ids, bool uses_branch) {
    auto x = torch::relu(norm->forward(first->forward(words->forward(ids).mean(1))));
    if (uses_branch) x = x + torch::tanh(branch->forward(x));
    return last->forward(x);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 32));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(32));
  torch::nn::Linear branch = register_module("branch", torch::nn::Linear(32, 32));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(32, 4));
};
TORCH_MODULE(Net);

struct Case {
  std::string name;
  DistributedDataParallelOptions options = {};
  CommHook (*hook)() = nullptr;
  bool branches = false;     // only some ranks use the branch, in some steps
  bool sparse = false;       // the embedding's gradients
  bool accumulates = false;  // two backwards a step, the first in no_sync()
  bool uneven = false;       // rank 0 has one more step
  bool clips = false;
  double tolerance = 1e-5;
};

std::vector<Case> cases() {
  const auto sgd = [](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.1));
  };
  return {
      {.name = "defaults"},
      {.name = "small buckets", .options = {.bucket_cap_mb = 0.001}},
      {.name = "gradients beside buckets", .options = {.gradient_as_bucket_view = false}},
      {.name = "batched_grad_copy", .options = {.gradient_as_bucket_view = false, .batched_grad_copy = true}},
      {.name = "static_graph", .options = {.static_graph = true}},
      {.name = "find_unused_parameters", .options = {.find_unused_parameters = true}, .branches = true},
      {.name = "skip_all_reduce_unused_params",
       .options = {.find_unused_parameters = true, .skip_all_reduce_unused_params = true},
       .branches = true},
      {.name = "delayed",
       .options = {.delay_all_reduce_named_params = {"first.weight"},
                   .param_to_hook_all_reduce = "words.weight"}},
      {.name = "mixed_precision",
       .options = {.mixed_precision = MixedPrecision{at::kBFloat16, at::kFloat, at::kBFloat16}},
       .tolerance = 2e-2},
      {.name = "ignored", .options = {.params_and_buffers_to_ignore = {"branch.weight", "branch.bias"}}},
      {.name = "optimizer_in_backward", .options = {.optimizer_in_backward = sgd}},
      {.name = "no_sync", .accumulates = true},
      {.name = "sparse gradients", .sparse = true},
      {.name = "join", .uneven = true},
      {.name = "clip_grad_norm_", .clips = true},
      {.name = "allreduce_hook", .hook = [] { return CommHook(allreduce_hook); }},
      {.name = "fp16_compress_hook", .hook = [] { return CommHook(fp16_compress_hook); }, .tolerance = 2e-3},
      {.name = "bf16_compress_hook", .hook = [] { return CommHook(bf16_compress_hook); }, .tolerance = 2e-2},
      {.name = "PowerSGD",
       .hook = [] { return CommHook(PowerSGD({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2})); },
       .tolerance = 1e-3},
  };
}

// The weights on the CPU after some steps on `device`.
std::vector<at::Tensor> train(const Context& context, const Case& each, const c10::Device& device) {
  torch::manual_seed(5);
  Net net(each.sparse);
  net->to(device);
  auto options = each.options;
  options.device_ids = {device};
  DistributedDataParallel ddp(net, options);
  if (each.hook != nullptr) ddp->register_comm_hook(each.hook());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  torch::manual_seed(100 + static_cast<std::uint64_t>(context.rank()));
  const auto backward = [&](int step) {
    const auto ids = torch::randint(20, {8, 5}, at::kLong).to(device);
    const auto labels = torch::randint(4, {8}, at::kLong).to(device);
    const bool uses_branch = !each.branches || (step + context.rank()) % 2 == 0;
    torch::nn::functional::cross_entropy(ddp->forward(ids, uses_branch), labels).backward();
  };
  const auto all_steps = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      if (each.accumulates) {
        const auto not_yet = ddp->no_sync();
        backward(step);
      }
      backward(step);
      if (each.clips) clip_grad_norm_(ddp, 0.1);
      if (!each.options.optimizer_in_backward) optimizer.step();
    }
  };
  if (each.uneven) {
    const auto join = ddp->join();
    all_steps(kSteps + (context.rank() == 0 ? 1 : 0));
  } else {
    all_steps(kSteps);
  }
  std::vector<at::Tensor> weights;
  for (const auto& parameter : net->parameters()) weights.push_back(parameter.detach().cpu());
  return weights;
}

void check_options(const InitOptions& init_options) {
  const auto context = init(init_options);
  std::string differing;
  for (const auto& each : cases()) {
    const auto expected = train(context, each, c10::kCPU);
    const auto actual = train(context, each, context.device());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (torch::allclose(actual[i], expected[i], each.tolerance, each.tolerance)) continue;
      differing += fmt::format("{}: weight {} by {}; ", each.name, i,
                               (actual[i] - expected[i]).abs().max().item<double>());
    }
  }
  require(differing.empty(), "weights on the GPU are what they are on the CPU, but for " + differing);
  context.synchronize();
}

}  // namespace

std::vector<Check> ddp_options_checks() {
  return {
      {"shared_options", 2, "every option of DDP, two ranks on one GPU",
       [] { check_options({.share_devices = true}); }},
      {"two_options", 2, "every option of DDP over nccl between two GPUs", [] { check_options({}); }, 2},
  };
}

}  // namespace lockstep::gpu
