// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallel on all ranks: the forward of a column and row pair beside its parts, and training steps of
// a GPT. The Python counterpart is pytorch/tensor_parallel_step.py.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "support/parallel_net.h"
#include "training_step.h"

namespace lockstep::bench::tensor_parallel_step {
namespace {

namespace tp = lockstep::tensor_parallel;
using Times = std::map<std::string, std::vector<double>>;

struct Flags {
  std::string backend = "auto";
  bool sequence = false;
  int steps = 20;
};

// The output of the pair has 64 KB.
constexpr std::int64_t kPairWidth = 1024, kPairHidden = 4096, kPairRows = 16;
constexpr std::int64_t kVocabulary = 1024, kLength = 64, kBatch = 8;
constexpr int kWidth = 256, kHeadDim = 32, kLayers = 4;

// Whole activations or parts of the sequence between the layers, by the plan.
struct GptImpl : torch::nn::Module {
  GptImpl() {
    emb = register_module("emb", torch::nn::Embedding(kVocabulary, kWidth));
    pos = register_module("pos", torch::nn::Embedding(kLength, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < kLayers; ++i)
      layers->push_back(lockstep::testing::ParallelBlock(kWidth, kHeadDim, 0.0, true));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head =
        register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto hidden = emb(tokens) + pos(torch::arange(tokens.size(1)).expand_as(tokens));
    for (const auto& layer : *layers) hidden = layer->as<lockstep::testing::ParallelBlock>()->forward(hidden);
    return head(norm(hidden));
  }
  torch::nn::Embedding emb{nullptr}, pos{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

template <typename Action>
void time_each(const lockstep::ProcessGroup& group, int count, Times& times, const std::string& name,
               Action action) {
  for (int i = -3; i < count; ++i) {
    group.barrier();
    double unused = 0;
    const auto seconds = seconds_of(
        [&] {
          action();
          return 0.0;
        },
        unused);
    if (i >= 0) times[name].push_back(seconds);
  }
}

void time_pair(const lockstep::DeviceMesh& mesh, int count, Times& times) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  tp::ColumnParallelLinear first(torch::nn::LinearOptions(kPairWidth, kPairHidden).bias(false), mesh);
  tp::RowParallelLinear second(torch::nn::LinearOptions(kPairHidden, kPairWidth).bias(false), mesh);
  const auto input = torch::randn({kPairRows, kPairWidth}), up = first->weight.detach().clone(),
             down = second->weight.detach().clone();
  const auto sum = torch::randn({kPairRows, kPairWidth});
  // In turn, since the machine's speed drifts.
  for (int i = 0; i < 10; ++i) {
    time_each(mesh.get_group(), count, times, "pair", [&] { second->forward(first->forward(input)); });
    time_each(mesh.get_group(), count, times, "products", [&] { at::linear(at::linear(input, up), down); });
    time_each(mesh.get_group(), count, times, "all_reduce", [&] { mesh.get_group().all_reduce(sum); });
  }
}

tp::ParallelizePlan plan_of(const Flags& flags) {
  if (!flags.sequence) return lockstep::testing::tensor_plan();
  auto plan = lockstep::testing::sequence_plan();
  std::erase_if(plan, [](const auto& each) { return each.first == "layers.*.drop"; });  // none here
  return plan;
}

double time_gpt(const lockstep::DeviceMesh& mesh, const Flags& flags, Times& times) {
  torch::manual_seed(0);
  Gpt net;
  tp::parallelize_module(net, mesh, plan_of(flags));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kRate));
  torch::manual_seed(1);
  const auto tokens = torch::randint(kVocabulary, {kBatch, kLength + 1});
  const auto input = tokens.slice(1, 0, -1), target = tokens.slice(1, 1).reshape({-1});
  double last = 0;
  time_each(mesh.get_group(), flags.steps, times, "gpt", [&] {
    optimizer.zero_grad();
    const auto logits = net->forward(input).flatten(0, 1);
    const auto loss = flags.sequence ? tp::loss_parallel(logits, target, mesh)
                                     : torch::nn::functional::cross_entropy(logits, target);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  });
  return last;
}

nlohmann::json measure(const Flags& flags) {
  const auto context = lockstep::init({.backend = flags.backend});
  const auto mesh = lockstep::init_device_mesh({context.world_size()}, {.mesh_dim_names = {"tp"}});
  Times times;
  time_pair(mesh, flags.steps, times);
  const double loss = time_gpt(mesh, flags, times);
  nlohmann::json result{{"rank", context.rank()}, {"loss", loss}};
  for (const auto& [name, each] : times) result[name] = median(each);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times tensor parallel layers and steps; prints JSON");
  Flags flags;
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_flag("--sequence", flags.sequence, "Parts of the sequence between the layers, and of the logits");
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = measure(flags);
  if (result["rank"] == 0) std::cout << result << std::endl;
  return 0;
}

}  // namespace lockstep::bench::tensor_parallel_step
