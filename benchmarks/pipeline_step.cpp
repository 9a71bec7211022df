// SPDX-License-Identifier: BSD-3-Clause
// Steps of a pipeline: their time, the idle share, and what simulate() says for the measured times of the
// actions. The Python counterpart is pytorch/pipeline_step.py.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "training_step.h"

namespace {

using namespace lockstep::bench;
namespace pipelining = lockstep::pipelining;
using lockstep::testing::GptBlock, lockstep::testing::fused_linear;

struct Flags {
  std::string net = "mlp";
  std::string schedule = "1F1B";
  std::string backend = "auto";
  int stages = 1;  // of a rank
  int microbatches = 8;
  int steps = 20;
};

constexpr std::int64_t kLayers = 8, kMlpWidth = 1024, kMlpBatch = 512;
constexpr std::int64_t kVocabulary = 1024, kWidth = 256, kHeads = 8, kLength = 64, kGptBatch = 32;

struct EmbeddingImpl : torch::nn::Module {
  EmbeddingImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_module("positions", torch::nn::Embedding(kLength, kWidth));
  }
  at::Tensor forward(const at::Tensor& ids) {
    return tokens->forward(ids) + positions->forward(at::arange(ids.size(1), ids.options()));
  }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
};
TORCH_MODULE(Embedding);

struct HeadImpl : torch::nn::Module {
  HeadImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    linear = register_module("linear", torch::nn::Linear(kWidth, kVocabulary));
  }
  at::Tensor forward(const at::Tensor& x) { return fused_linear(linear, norm->forward(x)); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Head);

// Equal layers; the first stage of "gpt" has the embeddings besides, the last one the head.
torch::nn::Sequential make_stage(const Flags& flags, int stage, int stages) {
  torch::manual_seed(static_cast<std::uint64_t>(stage));
  torch::nn::Sequential layers;
  const bool gpt = flags.net == "gpt";
  if (gpt && stage == 0) layers->push_back(Embedding());
  for (std::int64_t i = 0; i < kLayers / stages; ++i) {
    if (gpt) {
      layers->push_back(GptBlock(kWidth, kHeads));
    } else {
      layers->push_back(torch::nn::Linear(kMlpWidth, kMlpWidth));
      layers->push_back(torch::nn::Tanh());
    }
  }
  if (gpt && stage + 1 == stages) layers->push_back(Head());
  return layers;
}

struct Batch {
  at::Tensor input, target;
};

Batch make_batch(const Flags& flags) {
  torch::manual_seed(1);
  if (flags.net == "gpt") {
    return {torch::randint(kVocabulary, {kGptBatch, kLength}, at::kLong),
            torch::randint(kVocabulary, {kGptBatch, kLength}, at::kLong)};
  }
  return {torch::randn({kMlpBatch, kMlpWidth}), torch::randn({kMlpBatch, kMlpWidth})};
}

pipelining::LossFunction loss_of(const Flags& flags) {
  if (flags.net != "gpt")
    return [](const at::Tensor& y, const at::Tensor& target) { return torch::mse_loss(y, target); };
  return [](const at::Tensor& y, const at::Tensor& target) {
    return torch::cross_entropy_loss(y.flatten(0, 1), target.flatten());
  };
}

nlohmann::json measure(const Flags& flags) {
  const auto context = lockstep::init({.backend = flags.backend});
  const int ranks = context.world_size(), total = ranks * flags.stages;
  const auto plan = pipelining::make_plan(flags.schedule, ranks, flags.stages, flags.microbatches);
  const auto rank_of = pipelining::stage_to_rank(plan);
  std::vector<pipelining::PipelineStage> stages;
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < total; ++i) {
    if (rank_of[static_cast<std::size_t>(i)] != context.rank()) continue;
    const auto stage = make_stage(flags, i, total);
    for (const auto& parameter : stage->parameters()) parameters.push_back(parameter);
    stages.emplace_back(stage, i, total);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(kRate));
  pipelining::PipelineSchedule schedule(stages, plan, loss_of(flags), {.return_outputs = false});
  const auto [input, target] = make_batch(flags);
  std::vector<double> times, steps, idle, simulated_steps, simulated_idle;
  double loss = 0;
  for (int i = -3; i < flags.steps; ++i) {
    context.barrier();
    pipelining::Tensors losses;
    const auto seconds = seconds_of(
        [&] {
          optimizer.zero_grad();
          schedule.step({input}, target, &losses);
          optimizer.step();
          return losses.empty() ? 0 : torch::stack(losses).mean().item<double>();
        },
        loss);
    const auto timeline = schedule.timeline();
    if (i < 0) continue;
    const auto simulated = pipelining::simulate(schedule.plan(), pipelining::stage_times(timeline));
    times.push_back(seconds);
    steps.push_back(timeline.step_time);
    idle.push_back(timeline.idle_share);
    simulated_steps.push_back(simulated.step_time);
    simulated_idle.push_back(simulated.idle_share);
  }
  const auto sum = torch::full({1}, loss, at::kDouble);
  context.group().all_reduce(sum);
  return {{"rank", context.rank()},
          {"seconds", median(times)},
          {"idle", median(idle)},
          {"simulated_idle", median(simulated_idle)},
          {"pipeline_seconds", median(steps)},
          {"simulated_seconds", median(simulated_steps)},
          {"loss", sum.item<double>()}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times steps of a pipeline; prints JSON");
  Flags flags;
  app.add_option("--net", flags.net)->check(CLI::IsMember({"mlp", "gpt"}))->capture_default_str();
  app.add_option("--schedule", flags.schedule)->capture_default_str();
  app.add_option("--stages", flags.stages)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--microbatches", flags.microbatches)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--steps", flags.steps)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const auto result = measure(flags);
    if (result["rank"] == 0) std::cout << result << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "pipeline_step: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
