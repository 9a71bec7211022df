// SPDX-License-Identifier: BSD-3-Clause
// Trains a GPT on the bytes of a text, with data, pipeline and tensor parallelism. The losses are those of
// one process, and a run continues on any other mesh.
//
//   lockstep run --nproc-per-node 8 build/release/bin/gpt_mesh --mesh 2,2,2 --shard --folder gpt-run
//   lockstep run --nproc-per-node 2 build/release/bin/gpt_mesh --mesh 1,1,2 --folder gpt-run --resume
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;
using at::Tensor;
using torch::nn::Linear;

struct Flags {
  std::string text = "README.md", folder;
  std::vector<std::int64_t> mesh{1, 1, 1};
  int steps = 100, batch_size = 16, microbatches = 4, context = 64, layers = 4, width = 128;
  bool shard = false, resume = false;
};

struct Embeddings : torch::nn::Module {
  explicit Embeddings(const Flags& flags) : wte(256, flags.width), wpe(flags.context, flags.width) {
    register_module("wte", wte);
    register_module("wpe", wpe);
  }
  Tensor forward(const Tensor& tokens) { return wte(tokens) + wpe(torch::arange(tokens.size(1))); }
  torch::nn::Embedding wte, wpe;
};

struct Block : torch::nn::Module {
  explicit Block(int width) {
    for (const auto* name : {"ln_1", "ln_2"})
      norms.push_back(register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}))));
    for (const auto* name : {"q", "k", "v", "o"})
      attention.push_back(register_module(name, Linear(width, width)));
    c_fc = register_module("c_fc", Linear(width, 4 * width));
    c_proj = register_module("c_proj", Linear(4 * width, width));
  }
  Tensor forward(const Tensor& x) {
    const auto normed = norms[0](x);
    // As many heads as the projection returns: all, or this rank's.
    const auto heads = [&](int i) { return attention[i](normed).unflatten(-1, {-1, 32}).transpose(1, 2); };
    const auto y = at::scaled_dot_product_attention(heads(0), heads(1), heads(2), {}, 0, /*is_causal=*/true);
    const auto attended = x + attention[3](y.transpose(1, 2).flatten(2));
    return attended + c_proj(torch::gelu(c_fc(norms[1](attended))));
  }
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<Linear> attention;
  Linear c_fc{nullptr}, c_proj{nullptr};
};

torch::nn::Sequential make_gpt(const Flags& flags) {
  torch::nn::Sequential net(std::make_shared<Embeddings>(flags));
  for (int i = 0; i < flags.layers; ++i) net->push_back(std::make_shared<Block>(flags.width));
  net->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({flags.width})));
  net->push_back(Linear(torch::nn::LinearOptions(flags.width, 256).bias(false)));
  return net;
}

// int64 [batch_size, context + 1], the same on all ranks.
Tensor draw_windows(const Tensor& text, const Flags& flags, std::int64_t step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  const auto starts = torch::randint(text.size(0) - flags.context, {flags.batch_size, 1});
  return text.index({starts + torch::arange(flags.context + 1)}).to(torch::kLong);
}

void train(const Flags& flags) {
  const auto context = init();
  const auto mesh = init_device_mesh(flags.mesh, {.mesh_dim_names = {"dp", "pp", "tp"}});
  const auto replicas = mesh["dp"].get_group(), stages = mesh["pp"].get_group();
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(flags.text));
  const auto text = torch::from_file(flags.text, /*shared=*/false, size, torch::kUInt8);
  if (size <= flags.context) throw std::runtime_error("the text must be longer than --context");

  torch::manual_seed(0);
  auto stage = pipelining::split_sequential(make_gpt(flags), stages.size()).at(stages.rank());
  namespace tp = tensor_parallel;
  for (const auto& layer : *stage) {
    if (layer.ptr()->as<Block>() == nullptr) continue;
    tp::parallelize_module(*layer.ptr(), mesh["tp"],
                           {{"[qkv]", tp::ColwiseParallel()},
                            {"o", tp::RowwiseParallel()},
                            {"c_fc", tp::ColwiseParallel()},
                            {"c_proj", tp::RowwiseParallel()}});
    if (flags.shard) fully_shard(*layer.ptr(), {.mesh = mesh["dp"]});
  }
  const auto parameters =
      flags.shard ? fully_shard(*stage, {.mesh = mesh["dp"]}).parameters() : stage->parameters();
  optim::FusedAdamW optimizer(parameters, optim::FusedAdamWOptions(1e-3));
  const auto loss_of = [](const Tensor& logits, const Tensor& target) {
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), target.flatten());
  };
  pipelining::PipelineStageOptions options{.group = stages};
  if (!flags.shard) options.data_parallel_group = replicas;
  pipelining::Schedule1F1B schedule({stage, stages.rank(), stages.size(), options}, flags.microbatches,
                                    loss_of);

  constexpr StateDictOptions kFlat{.flatten_optimizer_state_dict = true};  // stages have other parameters
  const auto state_at = [&](std::int64_t step) {
    return Dict{{"model", get_model_state_dict(*stage)},
                {"optimizer", get_optimizer_state_dict(*stage, optimizer, kFlat)},
                {"step", step}};
  };
  std::int64_t step = 0;
  if (flags.resume) {
    auto state = state_at(0);
    distributed_checkpoint::load(state, flags.folder, default_group());
    set_model_state_dict(*stage, state.at("model").as_dict());
    set_optimizer_state_dict(*stage, optimizer, state.at("optimizer").as_dict(), kFlat);
    step = state.at("step").as_int();
  }
  for (const auto last = step + flags.steps; step < last; ++step) {
    const auto windows = draw_windows(text, flags, step).chunk(replicas.size()).at(replicas.rank());
    optimizer.zero_grad();
    pipelining::Tensors losses;
    schedule.step({windows.slice(1, 0, -1)}, windows.slice(1, 1), &losses);
    schedule.clip_grad_norm_(1.0);
    optimizer.step();
    if (losses.empty() || (step % 20 != 0 && step + 1 != last)) continue;
    const auto loss = reduce_value(torch::stack(losses).mean(), ReduceOp::AVG, replicas);
    if (replicas.rank() == 0 && mesh.get_local_rank("tp") == 0)
      std::cout << fmt::format("step {}: loss {:.4f}\n", step, loss.item<float>()) << std::flush;
  }
  if (!flags.folder.empty()) distributed_checkpoint::save(state_at(step), flags.folder, {}, default_group());
}

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT on any mesh of data, pipeline and tensor parallel ranks");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--mesh", flags.mesh, "Data, pipeline, tensor parallel ranks")->delimiter(',')->expected(3);
  app.add_flag("--shard", flags.shard, "fully_shard() instead of replicas");
  app.add_option("--text", flags.text, "The text file")->check(CLI::ExistingFile);
  app.add_option("--steps", flags.steps);
  app.add_option("--batch-size", flags.batch_size, "Windows in all replicas together");
  app.add_option("--microbatches", flags.microbatches, "Per replica; at least the pipeline's ranks");
  app.add_option("--context", flags.context, "Bytes per window");
  app.add_option("--layers", flags.layers);
  app.add_option("--width", flags.width, "A multiple of 32 times the tensor parallel ranks");
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
