// SPDX-License-Identifier: BSD-3-Clause
// Trains a small GPT-2 on the characters of a text file and writes a sample.
//
//   build/release/bin/gpt
//   lockstep run --nproc-per-node 2 build/release/bin/gpt --text shakespeare.txt --run gpt-run --resume
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;

struct Flags {
  std::string text = "README.md", run, prompt = "The ";
  std::int64_t steps = 300, batch_size = 8, accumulate = 2, context = 64, interval = 0;
  std::int64_t layers = 4, width = 128, seed = 0;
  double lr = 1e-3;
  bool bf16 = false, resume = false;
};

// The characters of a text as the tokens 0, 1, ...
struct Characters {
  explicit Characters(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    if (text.empty()) throw std::runtime_error(fmt::format("{} is not a readable text", file));
    const std::set<char> distinct(text.begin(), text.end());
    vocabulary.assign(distinct.begin(), distinct.end());
    tokens = encode(text);
  }

  // int64 [length]; characters that the text does not have are left out.
  torch::Tensor encode(const std::string& text) const {
    std::vector<std::int64_t> numbers;
    for (const char letter : text) {
      const auto token = vocabulary.find(letter);
      if (token != std::string::npos) numbers.push_back(static_cast<std::int64_t>(token));
    }
    return torch::tensor(numbers, torch::kLong);
  }

  std::string decode(const torch::Tensor& numbers) const {
    std::string text;
    for (std::int64_t i = 0; i < numbers.numel(); ++i)
      text += vocabulary[static_cast<std::size_t>(numbers[i].item<std::int64_t>())];
    return text;
  }

  std::string vocabulary;
  torch::Tensor tokens;
};

// Windows of `length` tokens, each with the tokens that follow; views of one tensor.
data::TensorDataset windows(const torch::Tensor& tokens, std::int64_t length, std::int64_t stride) {
  if (tokens.size(0) <= length) throw std::runtime_error("a tenth of the text must be longer than --context");
  const auto both = tokens.unfold(0, length + 1, stride);
  return {both.narrow(1, 0, length), both.narrow(1, 1, length)};
}

// Returns the exit code.
int train(const Flags& flags) {
  const auto context = init();
  manual_seed(static_cast<std::uint64_t>(flags.seed));
  const Characters text(flags.text);
  const auto prompt = text.encode(flags.prompt).unsqueeze(0).to(context.device());
  const auto room = flags.context - prompt.size(1);
  if (room < 1 || room == flags.context)
    throw std::runtime_error("--prompt needs characters of the text, and fewer than --context");
  const auto split = text.tokens.size(0) * 9 / 10;
  const auto train_set = windows(text.tokens.slice(0, 0, split), flags.context, 1);
  const auto val_set = windows(text.tokens.slice(0, split), flags.context, flags.context);
  data::DataLoader train_loader(
      train_set,
      {.batch_size = flags.batch_size, .shuffle = true, .seed = flags.seed, .device = context.device()});
  const auto sampler = std::make_shared<data::DistributedEvalSampler>(val_set);
  data::DataLoader val_loader(
      val_set, {.batch_size = flags.batch_size, .sampler = sampler, .device = context.device()});

  models::GPT2 net(models::GPT2Options{.vocab_size = static_cast<std::int64_t>(text.vocabulary.size()),
                                       .n_positions = flags.context,
                                       .n_embd = flags.width,
                                       .n_layer = flags.layers,
                                       .n_head = flags.width / 32});
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  optim::FusedAdamW optimizer(net->parameters(), optim::FusedAdamWOptions(flags.lr).weight_decay(0.1));
  optim::CosineAnnealingLR schedule(optimizer, flags.steps, flags.lr / 10);
  const auto loss_of = [&](auto& model, const data::Batch& batch) {
    return torch::nn::functional::cross_entropy(model->forward(batch.data).flatten(0, 1),
                                                batch.target.flatten());
  };
  const TrainerOptions training{.max_steps = flags.steps,
                                .accumulation_steps = flags.accumulate,
                                .max_grad_norm = 1.0,
                                .autocast = flags.bf16 ? std::optional(torch::kBFloat16) : std::nullopt,
                                .checkpoints = flags.run,
                                .checkpoint_interval = flags.interval,
                                .resume = flags.resume,
                                .progress = true,
                                .log_interval = 10};
  Trainer trainer(ddp, optimizer, training);
  trainer.step_scheduler(schedule);
  if (!flags.run.empty()) trainer.on_log(csv_logger(flags.run + "/log.csv"));
  metrics::Throughput tokens;
  trainer.on_step(
      [&](const torch::Tensor&) { tokens.update(flags.batch_size * flags.accumulate * flags.context); });
  trainer.fit(train_loader, [&](auto& batch) { return loss_of(ddp, batch); });
  if (trainer.interrupted()) return kExitInterrupted;
  const auto rate = tokens.compute();
  metrics::Perplexity perplexity;
  net->eval();
  const torch::NoGradGuard no_grad;
  for (auto& batch : val_loader) perplexity.update_loss(loss_of(net, batch), batch.target.numel());
  const auto value = perplexity.compute();
  if (!context.is_main_process()) return 0;
  if (!flags.run.empty()) save(state_dict(net), flags.run + "/weights.pt");
  const auto sample = net->generate(prompt, {.max_new_tokens = room, .do_sample = true});
  std::cout << fmt::format("step {}: perplexity {:.3f} per character, {:.0f} tokens/s\n{}\n", trainer.step(),
                           value, rate, text.decode(sample[0].cpu()));
  return 0;
}

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT-2 on the characters of a text, in any number of processes");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--text", flags.text, "The text file")->check(CLI::ExistingFile);
  app.add_option("--steps", flags.steps, "Steps of the optimizer");
  app.add_option("--batch-size", flags.batch_size, "Windows per batch and rank");
  app.add_option("--accumulate", flags.accumulate, "Batches per step");
  app.add_option("--context", flags.context, "Characters per window");
  app.add_option("--layers", flags.layers);
  app.add_option("--width", flags.width, "With an attention head per 32");
  app.add_option("--lr", flags.lr, "The first learning rate; a cosine lowers it to a tenth");
  app.add_flag("--bf16", flags.bf16, "Mixed precision");
  app.add_option("--seed", flags.seed, "For the weights, batches, dropout and sample");
  app.add_option("--prompt", flags.prompt, "The beginning of the sample");
  app.add_option("--interval", flags.interval, "Steps between checkpoints; 0: one per epoch");
  auto* run = app.add_option("--run", flags.run, "Folder for checkpoints, weights and log.csv");
  app.add_flag("--resume", flags.resume, "Continue from the newest checkpoint, if any")->needs(run);
  CLI11_PARSE(app, argc, argv);
  try {
    return train(flags);
  } catch (const std::exception& error) {
    std::cerr << "gpt: " << error.what() << std::endl;
    return 1;
  }
}
