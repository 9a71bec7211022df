// SPDX-License-Identifier: BSD-3-Clause
// Steps of a pipeline: their time, the idle share, and what simulate() says for the measured times of the
// actions. The Python counterpart is pytorch/pipeline_step.py.
#include <fstream>
#include <iostream>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "training_step.h"

namespace lockstep::bench::pipeline_step {
namespace {

namespace pipelining = lockstep::pipelining;
using lockstep::testing::GptBlock, lockstep::testing::fused_linear;

struct Flags {
  std::string net = "mlp";
  std::string schedule = "1F1B";
  std::string backend = "auto";
  int stages = 1;  // of a rank
  int microbatches = 8;
  int steps = 20;
  std::string timeline;  // a file
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

// The mean of all stages.
pipelining::StageTimes mean_times(const pipelining::Timeline& timeline) {
  pipelining::StageTimes mean{.forward = 0, .input = 0, .weight = 0};
  const auto all = pipelining::stage_times(timeline);
  const auto count = static_cast<double>(all.size());
  for (const auto& [forward, input, weight] : all) {
    mean.forward += forward / count;
    mean.input += input / count;
    mean.weight += weight / count;
  }
  return mean;
}

// The idle share of more ranks with equal stages and four micro-batches for each rank.
nlohmann::json simulated_ranks(const Flags& flags, const pipelining::Timeline& timeline) {
  nlohmann::json idle;
  for (int ranks = 2; ranks <= 64; ranks *= 2) {
    const auto plan = pipelining::make_plan(flags.schedule, ranks, flags.stages, 4 * ranks);
    idle["idle_" + std::to_string(ranks)] = pipelining::simulate(plan, {mean_times(timeline)}).idle_share;
  }
  return idle;
}

// Since the start of the process, without those that read a disk.
double page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_minflt);
}

// A line for each action.
void write_actions(std::ostream& out, int step, const pipelining::Timeline& timeline) {
  for (const auto& [rank, action, start, end] : timeline.actions)
    out << step << ',' << rank << ',' << action.str() << ',' << start << ',' << end << '\n';
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
  std::vector<double> times, faults, steps, idle, simulated_steps, simulated_idle;
  double loss = 0;
  std::ofstream actions;
  if (!flags.timeline.empty() && context.rank() == 0) {
    actions.open(flags.timeline);
    actions << "step,rank,action,start,end\n";
  }
  for (int i = -3; i < flags.steps; ++i) {
    context.barrier();
    pipelining::Tensors losses;
    const auto faults_before = page_faults();
    const auto seconds = seconds_of(
        [&] {
          optimizer.zero_grad();
          schedule.step({input}, target, &losses);
          optimizer.step();
          return losses.empty() ? 0 : torch::stack(losses).mean().item<double>();
        },
        loss);
    const auto new_faults = page_faults() - faults_before;
    const auto timeline = schedule.timeline();
    if (i < 0) continue;
    faults.push_back(new_faults);
    if (actions.is_open()) write_actions(actions, i, timeline);
    const auto simulated = pipelining::simulate(schedule.plan(), pipelining::stage_times(timeline));
    times.push_back(seconds);
    steps.push_back(timeline.step_time);
    idle.push_back(timeline.idle_share);
    simulated_steps.push_back(simulated.step_time);
    simulated_idle.push_back(simulated.idle_share);
  }
  const auto sum = torch::full({1}, loss, at::kDouble);
  context.group().all_reduce(sum);
  auto result = simulated_ranks(flags, schedule.timeline());
  result.update({{"rank", context.rank()},
                 {"seconds", median(times)},
                 {"page_faults", median(faults)},
                 {"idle", median(idle)},
                 {"simulated_idle", median(simulated_idle)},
                 {"pipeline_seconds", median(steps)},
                 {"simulated_seconds", median(simulated_steps)},
                 {"loss", sum.item<double>()}});
  return result;
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
  app.add_option("--timeline", flags.timeline, "Write the actions of all steps, in seconds: a CSV file");
  CLI11_PARSE(app, argc, argv);
  const auto result = measure(flags);
  if (result["rank"] == 0) std::cout << result << std::endl;
  return 0;
}

}  // namespace lockstep::bench::pipeline_step
