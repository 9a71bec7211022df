// SPDX-License-Identifier: BSD-3-Clause
// The same training with 1, 2, ... ranks: a table and a chart of time, speed-up and accuracy.
//
//   build/release/bin/timing --ranks 1 2 --svg timing.svg
#include <chrono>
#include <fstream>
#include <iostream>
#include <tuple>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;
using torch::nn::functional::cross_entropy;

struct Flags {
  std::vector<int> ranks = {1, 2};
  std::int64_t epochs = 2, batch_size = 64, samples = 2048;
  std::string svg = "timing.svg";
};

struct Result {
  int ranks;
  double seconds;  // of an epoch
  double accuracy;
};

// Ten patterns under noise: [count, 3, 32, 32].
data::TensorDataset draw_pictures(std::int64_t count, std::uint64_t seed) {
  torch::manual_seed(7);
  const auto patterns = torch::randn({10, 3, 32, 32});
  torch::manual_seed(seed);
  const auto classes = torch::randint(10, {count});
  return {patterns.index_select(0, classes) + 4 * torch::randn({count, 3, 32, 32}), classes};
}

// [batch, 3, 32, 32] -> [batch, 10]
torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(3, 32, 3), ReLU(), Conv2d(32, 32, 3), ReLU(), MaxPool2d(2), Conv2d(32, 64, 3),
                    ReLU(), MaxPool2d(2), Flatten(), Linear(64 * 36, 10));
}

// Runs in each rank: batches of batch_size / ranks, so that every run makes the same steps.
void train(int /*rank*/, const Flags& flags, const std::string& file) {
  const auto context = init();
  const auto train_set = draw_pictures(flags.samples, 1), test_set = draw_pictures(512, 2);
  torch::manual_seed(0);
  auto net = make_net();
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto batch_size = flags.batch_size / context.world_size();
  data::DataLoader loader(train_set,
                          {.batch_size = batch_size, .shuffle = true, .seed = 0, .device = context.device()});
  Trainer trainer(ddp, optimizer, {.epochs = flags.epochs});
  context.barrier();
  const auto start = std::chrono::steady_clock::now();
  trainer.fit(loader, [&](auto& batch) { return cross_entropy(ddp->forward(batch.data), batch.target); });
  context.synchronize();
  context.barrier();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  const auto sampler = std::make_shared<data::DistributedEvalSampler>(test_set);
  data::DataLoader test_loader(test_set,
                               {.batch_size = batch_size, .sampler = sampler, .device = context.device()});
  const torch::NoGradGuard no_grad;
  metrics::Accuracy accuracy;
  for (auto& [pictures, classes] : test_loader) accuracy.update(net->forward(pictures), classes);
  const auto value = accuracy.compute();
  if (context.is_main_process())
    save(Dict{{"seconds", seconds.count() / static_cast<double>(flags.epochs)}, {"accuracy", value}}, file);
}

Result measure(int ranks, const Flags& flags) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("timing-{}.pt", ::getpid());
  spawn(train, std::tuple(flags, file.string()), {.nprocs = ranks});
  const auto result = load(file);
  std::filesystem::remove(file);
  return {ranks, result["seconds"], result["accuracy"]};
}

// Bars of the speed-up, and a line where it would be the number of ranks.
void draw_chart(const std::vector<Result>& results, const std::string& file) {
  std::ofstream svg(file);
  const double most = results.back().ranks, unit = 200 / most, width = 60;
  const auto total = static_cast<double>(results.size()) * width + 40;
  svg << fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='295' font-family='sans-serif' "
      "font-size='11' text-anchor='middle'>\n<text x='{}' y='14'>speed-up, time of an epoch, "
      "accuracy</text>\n",
      total + 40, total / 2);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const double speed_up = results.front().seconds / results[i].seconds,
                 x = 30 + static_cast<double>(i) * width;
    const double ideal = 240 - unit * results[i].ranks / results.front().ranks;
    svg << fmt::format("<rect x='{}' y='{}' width='40' height='{}' fill='#4878a8'/>\n", x,
                       240 - unit * speed_up, unit * speed_up)
        << fmt::format("<path d='M{} {} h48' stroke='#c44'/>\n", x - 4, ideal)
        << fmt::format("<text x='{}' y='255'>{} ranks</text>\n", x + 20, results[i].ranks)
        << fmt::format("<text x='{}' y='270'>{:.2f} s, {:.2f}x</text>\n", x + 20, results[i].seconds,
                       speed_up)
        << fmt::format("<text x='{}' y='285'>{:.1f}%</text>\n", x + 20, 100 * results[i].accuracy);
  }
  svg << "</svg>\n";
  if (!svg.flush()) throw std::runtime_error("cannot write " + file);
}

int main(int argc, char** argv) {
  CLI::App app("Times the same training with different numbers of ranks");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--ranks", flags.ranks, "Numbers of ranks, ascending")->check(CLI::PositiveNumber);
  app.add_option("--epochs", flags.epochs)->check(CLI::PositiveNumber);
  app.add_option("--batch-size", flags.batch_size, "Pictures per step of all ranks");
  app.add_option("--samples", flags.samples, "Pictures per epoch");
  app.add_option("--svg", flags.svg, "File of the chart");
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<Result> results;
    std::cout << "ranks  s/epoch  speed-up  accuracy" << std::endl;
    for (const int ranks : flags.ranks) {
      if (flags.batch_size % ranks != 0) throw std::runtime_error("--ranks must divide --batch-size");
      const auto& result = results.emplace_back(measure(ranks, flags));
      std::cout << fmt::format("{:5}  {:7.2f}  {:8.2f}  {:7.1f}%", ranks, result.seconds,
                               results.front().seconds / result.seconds, 100 * result.accuracy)
                << std::endl;
    }
    draw_chart(results, flags.svg);
  } catch (const std::exception& error) {
    std::cerr << "timing: " << error.what() << std::endl;
    return 1;
  }
}
