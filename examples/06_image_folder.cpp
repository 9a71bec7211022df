// SPDX-License-Identifier: BSD-3-Clause
// Trains a small ResNet on a folder of pictures, one subfolder per class. Draws circles, squares and crosses
// where the folder does not exist.
//
//   build/release/bin/06_image_folder
//   lockstep run --nproc-per-node 2 build/release/bin/06_image_folder --workers 2 --checkpoints pictures-run
//   lockstep run --nproc-per-node 2 build/release/bin/06_image_folder --checkpoints pictures-run --resume
#include <filesystem>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep::transforms;
using lockstep::data::ImageFolder;

// x + convolutions(x), with half of the height and width.
struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out)
      : first(register_module("first", conv(in, out, 3, 2))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(out))),
        second(register_module("second", conv(out, out, 3, 1))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(out))),
        shortcut(register_module("shortcut", conv(in, out, 1, 2))) {}

  static torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = torch::relu(norm1->forward(first->forward(x)));
    return torch::relu(norm2->forward(second->forward(y)) + shortcut->forward(x));
  }

  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d second;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Conv2d shortcut;
};
TORCH_MODULE(Block);

// [batch, 3, 64, 64] -> [batch, classes]
torch::nn::Sequential make_net(std::int64_t classes) {
  using namespace torch::nn;
  return Sequential(Block(3, 16), Block(16, 32), Block(32, 64), AdaptiveAvgPool2d(1), Flatten(),
                    Linear(64, classes));
}

// One shape of a drawn color and place on noise: uint8 [3, 96, 128].
torch::Tensor draw_picture(std::int64_t shape) {
  const auto x = torch::arange(128) - torch::randint(40, 88, {1});
  const auto y = (torch::arange(96) - torch::randint(35, 61, {1})).unsqueeze(1);
  const auto size = torch::randint(15, 30, {1});
  const auto inside =
      shape == 0 ? x * x + y * y < size * size
      : shape == 1
          ? (x.abs() < size).logical_and(y.abs() < size)
          : torch::minimum(x.abs(), y.abs()).lt(5).logical_and(torch::maximum(x.abs(), y.abs()) < size);
  const auto background = torch::randint(0, 120, {3, 96, 128});
  return torch::where(inside, torch::randint(130, 256, {3, 1, 1}), background).to(torch::kByte);
}

void draw_pictures(const std::filesystem::path& folder, int per_class) {
  const std::vector<std::string> classes = {"circle", "square", "cross"};
  const auto unfinished = folder.string() + ".part";
  for (std::size_t shape = 0; shape < classes.size(); ++shape) {
    std::filesystem::create_directories(unfinished + "/" + classes[shape]);
    for (int i = 0; i < per_class; ++i) {
      lockstep::data::save_image(draw_picture(static_cast<std::int64_t>(shape)),
                                 fmt::format("{}/{}/{:04}.jpg", unfinished, classes[shape], i));
    }
  }
  std::filesystem::rename(unfinished, folder);
}

struct Flags {
  std::string folder = ".data/shapes";
  int pictures = 200;
  int epochs = 3;
  int workers = 1;
  std::int64_t interval = 3;
  std::string checkpoints;
  bool resume = false;
};

void train(const Flags& flags) {
  const auto context = lockstep::init();
  if (context.is_main() && !std::filesystem::exists(flags.folder))
    draw_pictures(flags.folder, flags.pictures);
  lockstep::barrier();
  torch::manual_seed(0);

  const ImageFolder pictures(
      flags.folder,
      {.transform = Compose(RandomResizedCrop(64, {.scale = {0.5, 1.0}}), RandomHorizontalFlip(), ToTensor(),
                            Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}))});
  auto loader = lockstep::data::make_loader(
      pictures, {.batch_size = 32,
                 .shuffle = true,
                 .num_workers = flags.workers,
                 .seed = 0,
                 .device = context.device(),
                 .augmentation_seed = 0});  // equal batches for any number of workers
  auto net = make_net(static_cast<std::int64_t>(pictures.classes().size()));
  lockstep::DistributedDataParallel ddp(net, {.device = context.device()});
  torch::optim::AdamW optimizer(ddp->parameters(), 2e-3);

  int epoch = 1;
  std::int64_t step = 0;
  lockstep::TrainingState state;
  state.add("model", ddp)
      .add("optimizer", optimizer)
      .add("loader", loader)
      .add("epoch", epoch)
      .add("step", step);
  std::optional<lockstep::CheckpointManager> manager;
  if (!flags.checkpoints.empty()) manager.emplace(flags.checkpoints);
  if (auto saved = flags.resume ? manager->load_latest() : std::nullopt) {
    state.load_state_dict(saved->contents.as_dict());
  }
  for (; epoch <= flags.epochs; ++epoch) {
    loader.set_epoch(epoch);
    auto totals =
        torch::zeros({2}, torch::dtype(torch::kDouble).device(context.device()));  // correct, samples
    for (auto& [images, targets] : loader) {
      optimizer.zero_grad();
      const auto scores = ddp->forward(images);
      torch::nn::functional::cross_entropy(scores, targets).backward();
      optimizer.step();
      totals[0] += scores.argmax(1).eq(targets).sum();
      totals[1] += targets.size(0);
      if (++step % flags.interval == 0 && manager) manager->save(step, state.state_dict());
    }
    context.group().all_reduce(totals);
    if (context.is_main()) {
      std::cout << fmt::format("epoch {}: {:.1f} % of the training pictures correct\n", epoch,
                               100 * (totals[0] / totals[1]).item<double>());
    }
  }
  double sum = 0;
  for (const auto& parameter : ddp->parameters()) sum += parameter.sum().item<double>();
  if (context.is_main())
    std::cout << fmt::format("done after {} steps; sum of the parameters: {:.9g}\n", step, sum);
}

int main(int argc, char** argv) {
  CLI::App app("Trains a small ResNet on a folder of pictures, in as many processes as it is started with");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--folder", flags.folder, "Folder of the pictures; drawn where it does not exist");
  app.add_option("--pictures", flags.pictures, "Pictures to draw per class")->check(CLI::PositiveNumber);
  app.add_option("--epochs", flags.epochs, "Passes over the pictures")->check(CLI::PositiveNumber);
  app.add_option("--workers", flags.workers, "Threads that decode")->check(CLI::NonNegativeNumber);
  app.add_option("--interval", flags.interval, "Steps per checkpoint")->check(CLI::PositiveNumber);
  auto* folder =
      app.add_option("--checkpoints", flags.checkpoints, "Folder for checkpoints; none by default");
  app.add_flag("--resume", flags.resume, "Continue from the newest checkpoint, if any")->needs(folder);
  CLI11_PARSE(app, argc, argv);
  try {
    train(flags);
  } catch (const std::exception& error) {
    std::cerr << "06_image_folder: " << error.what() << std::endl;
    return 1;
  }
}
