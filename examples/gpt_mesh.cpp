// SPDX-License-Identifier: BSD-3-Clause
// Trains a GPT, or the library's Llama, on the bytes of a text, with data, pipeline, expert, context and
// tensor parallelism. The losses are those of one process, and a run continues on any other mesh.
//
//   lockstep run --nproc-per-node 8 build/release/bin/gpt_mesh --mesh 2,2,2 --shard --folder gpt-run
//   lockstep run --nproc-per-node 2 build/release/bin/gpt_mesh --cp 2 --folder gpt-run --resume
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "gpt_mesh_net.h"

using namespace lockstep;
using at::Tensor;

struct Flags : Sizes {
  std::string text = "README.md", folder;
  std::vector<std::int64_t> mesh{1, 1, 1};
  std::int64_t cp = 1, ep = 1;
  int steps = 100, batch_size = 16, microbatches = 4;
  bool llama = false, shard = false, resume = false;
};

pipelining::PipelineStage make_stage(const Flags& flags, const DeviceMesh& mesh) {
  pipelining::PipelineStageOptions options{.group = mesh["pp"].get_group()};
  if (!flags.shard) options.data_parallel_group = mesh[{"dp", "ep", "cp"}].flatten().get_group();
  const auto stage = options.group->rank(), stages = options.group->size();
  if (!flags.llama)
    return {pipelining::split_sequential(make_gpt(flags, mesh), stages).at(stage), stage, stages, options};
  const auto net = make_llama(flags, mesh)->pipeline_stage(stage, stages);
  const auto positions = context_parallel::shard(torch::arange(flags.context).unsqueeze(0), mesh["cp"], 1);
  const auto forward = [=](const pipelining::Tensors& x) {
    return pipelining::Tensors{net->forward(x[0], nullptr, positions)};
  };
  return {net, forward, stage, stages, options};
}

// Tensor parallel first, then sharded: experts over the ranks that have the same ones.
std::vector<Tensor> distribute(torch::nn::Module& stage, const Flags& flags, const DeviceMesh& mesh) {
  const auto replicas = mesh[{"dp", "cp"}].flatten(), data = mesh[{"dp", "ep", "cp"}].flatten();
  for (const auto& layer : stage.modules()) {
    const auto plan = plan_of(*layer);
    if (plan.empty()) continue;
    tensor_parallel::parallelize_module(layer, mesh["tp"], plan);
    const auto* const block = layer->as<Block>();
    if (block != nullptr && block->moe) fully_shard(block->moe->experts, {.mesh = replicas});
    if (flags.shard) fully_shard(layer, {.mesh = data});
  }
  return flags.shard ? fully_shard(stage, {.mesh = data}).parameters() : stage.parameters();
}

void train(const Flags& flags) {
  const auto context = init();
  const auto mesh = init_device_mesh({flags.mesh[0], flags.mesh[1], flags.ep, flags.cp, flags.mesh[2]},
                                     {.mesh_dim_names = {"dp", "pp", "ep", "cp", "tp"}});
  const auto batches = mesh[{"dp", "ep"}].flatten().get_group();
  const auto data = mesh[{"dp", "ep", "cp"}].flatten().get_group();
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(flags.text));
  const auto text = torch::from_file(flags.text, /*shared=*/false, size, torch::kUInt8);
  if (size <= flags.context) throw std::runtime_error("the text must be longer than --context");
  if (flags.width % Sizes::kHeadDim != 0) throw std::runtime_error("--width must be a multiple of 32");
  tensor_parallel::local_heads(flags.width / Sizes::kHeadDim, mesh["tp"]);  // throws if they do not divide

  torch::manual_seed(0);
  const auto stage = make_stage(flags, mesh);
  auto& net = *stage.submodule();
  optim::FusedAdamW optimizer(distribute(net, flags, mesh), optim::FusedAdamWOptions(1e-3));
  const auto loss_of = [](const Tensor& logits, const Tensor& target) {
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), target.flatten());
  };
  pipelining::Schedule1F1B schedule(stage, flags.microbatches, loss_of);

  constexpr StateDictOptions kFlat{.flatten_optimizer_state_dict = true};  // ranks have other parameters
  Dict state;
  std::int64_t step = 0;
  const auto update = [&] {
    state = {{"model", get_model_state_dict(net)},
             {"optimizer", get_optimizer_state_dict(net, optimizer, kFlat)},
             {"step", step}};
  };
  if (flags.resume) {
    update();
    distributed_checkpoint::load(state, flags.folder);
    set_model_state_dict(net, state.at("model"));
    set_optimizer_state_dict(net, optimizer, state.at("optimizer"), kFlat);
    step = state.at("step");
  }
  for (const auto last = step + flags.steps; step < last; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));  // all ranks draw alike, and take their parts
    const auto starts = torch::randint(size - flags.context, {flags.batch_size, 1}).chunk(batches.size());
    const auto part = context_parallel::shard(torch::arange(flags.context), mesh["cp"], 0);
    const auto places = starts.at(batches.rank()) + part;
    optimizer.zero_grad();
    pipelining::Tensors losses;
    schedule.step({text.index({places}).to(torch::kLong)}, text.index({places + 1}).to(torch::kLong),
                  &losses);
    schedule.clip_grad_norm_(1.0);
    optimizer.step();
    if (losses.empty() || (step % 20 != 0 && step + 1 != last)) continue;
    const auto loss = reduce_value(torch::stack(losses).mean(), ReduceOp::AVG, data);
    if (data.rank() == 0 && mesh.get_local_rank("tp") == 0)
      std::cout << fmt::format("step {}: loss {:.6f}\n", step, loss.item<float>()) << std::flush;
  }
  if (flags.folder.empty()) return;
  update();
  distributed_checkpoint::save(state, flags.folder);
}

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT on any mesh");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--mesh", flags.mesh, "Data, pipeline, tensor parallel ranks")->delimiter(',')->expected(3);
  app.add_option("--cp", flags.cp, "Context parallel ranks");
  auto* shard = app.add_flag("--shard", flags.shard, "fully_shard() instead of replicas");
  auto* experts =
      app.add_option("--experts", flags.experts, "Experts of each block; 0: an MLP")->needs(shard);
  app.add_flag("--llama", flags.llama, "The library's Llama instead of a GPT")->excludes(experts);
  app.add_option("--ep", flags.ep, "Expert parallel ranks, which divide --experts")->needs(experts);
  app.add_option("--text", flags.text, "The text file")->check(CLI::ExistingFile);
  app.add_option("--steps", flags.steps);
  app.add_option("--batch-size", flags.batch_size, "Windows of a step, in all replicas");
  app.add_option("--microbatches", flags.microbatches, "Per replica; at least the pipeline's ranks");
  app.add_option("--context", flags.context, "Bytes per window, a multiple of 2 * cp");
  app.add_option("--layers", flags.layers);
  app.add_option("--width", flags.width, "Heads of 32, which the tensor parallel ranks divide");
  auto* folder = app.add_option("--folder", flags.folder, "The checkpoint");
  app.add_flag("--resume", flags.resume, "Continue from the checkpoint")->needs(folder);
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "gpt_mesh: " << error.what() << std::endl;
    return 1;
  }
}
