// SPDX-License-Identifier: BSD-3-Clause
// Fine-tunes a ResNet on a folder of pictures, one subfolder per class; draws one if there is none.
//
//   build/release/bin/image_folder_finetune
//   lockstep run --nproc-per-node 2 build/release/bin/image_folder_finetune --run finetune --resume
//   srun -n 8 build/release/bin/image_folder_finetune --folder flowers --weights resnet34-b627a593.pth
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;
using namespace lockstep::transforms;
using torch::nn::functional::cross_entropy;

struct Flags {
  std::string folder = ".data/stripes", run, weights, profile, arch = "resnet18";
  std::int64_t size = 64, epochs = 3, batch_size = 16, seed = 0, interval = 0;
  int workers = 1;
  double lr = 0.01, lrf = 0.1;
  bool freeze_layers = false, sync_bn = false, bf16 = false, channels_last = false, resume = false;
};

// If there is no folder: stripes across, stripes down or squares, of a drawn width, on noise.
void draw_pictures(const std::filesystem::path& folder, int local_rank) {
  if (local_rank != 0 || std::filesystem::exists(folder)) return;  // hosts need not share the disk
  const auto unfinished = folder.string() + ".part";
  const auto x = torch::arange(128), y = torch::arange(96).unsqueeze(1);
  for (int i = 0; i < 180; ++i) {
    const auto width = torch::randint(8, 20, {1});
    const auto across = (y / width).floor() + 0 * x, down = (x / width).floor() + 0 * y;
    const auto pattern = i % 3 == 0 ? across : i % 3 == 1 ? down : across + down;
    const auto picture = torch::randint(0, 120, {3, 96, 128}) + 130 * pattern.remainder(2);
    const auto of_class = unfinished + (i % 3 == 0 ? "/across" : i % 3 == 1 ? "/down" : "/squares");
    std::filesystem::create_directories(of_class);
    data::save_image(picture.to(torch::kByte), fmt::format("{}/{:04}.jpg", of_class, i));
  }
  std::filesystem::rename(unfinished, folder);
}

models::ResNet make_net(const Flags& flags, std::int64_t classes) {
  auto net = flags.arch == "resnet18" ? models::resnet18() : models::resnet34();
  if (!flags.weights.empty()) {
    const auto report = load_pretrained(net, flags.weights, {.partial = true});
    if (get_rank() == 0) std::cout << report;
  }
  net->fc = torch::nn::Linear(net->fc->options.in_features(), classes);
  if (flags.freeze_layers) freeze_all_but(net, {"fc"});
  if (flags.sync_bn) convert_sync_batchnorm(net);
  if (flags.channels_last) to_memory_format(net, torch::MemoryFormat::ChannelsLast);
  return net;
}

// Returns the exit code.
int train(const Flags& flags) {
  const auto context = init();  // under the launcher, under SLURM, or one process alone
  context.main_process_first([&] { draw_pictures(flags.folder, context.local_rank()); });
  context.barrier();
  torch::manual_seed(static_cast<std::uint64_t>(flags.seed));
  const Normalize normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  const Compose augment(RandomResizedCrop(flags.size), RandomHorizontalFlip(), ToTensor(), normalize);
  const Compose resize(Resize(flags.size * 256 / 224), CenterCrop(flags.size), ToTensor(), normalize);
  const data::ImageFolder train_images(flags.folder, {.transform = augment});
  const data::ImageFolder val_images(flags.folder, {.transform = resize});
  const auto parts = data::train_val_split_indices(train_images.targets(), {.seed = flags.seed});
  const data::Subset train_set(train_images, parts.train), val_set(val_images, parts.val);
  data::DataLoader train_loader(  // shards over the ranks
      train_set, {.batch_size = flags.batch_size,
                  .shuffle = true,
                  .num_workers = flags.workers,
                  .seed = flags.seed,
                  .device = context.device(),
                  .augmentation_seed = flags.seed});
  data::DataLoader val_loader(  // every picture on one rank
      val_set, {.batch_size = flags.batch_size,
                .sampler = std::make_shared<data::DistributedEvalSampler>(val_set),
                .num_workers = flags.workers,
                .device = context.device()});
  auto net = make_net(flags, std::ssize(train_images.classes()));
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(ddp->parameters(),
                              torch::optim::SGDOptions(flags.lr).momentum(0.9).weight_decay(5e-5));
  const auto epoch = train_loader.size();  // one of warm-up, then a cosine
  optim::LinearLR warmup(optimizer, 0.01, 1, epoch);
  optim::CosineAnnealingLR cosine(optimizer, std::max(flags.epochs - 1, 1L) * epoch, flags.lr * flags.lrf);
  optim::SequentialLR schedule(optimizer, {warmup, cosine}, {epoch});
  const TrainerOptions training{.epochs = flags.epochs,
                                .autocast = flags.bf16 ? std::optional(torch::kBFloat16) : std::nullopt,
                                .checkpoints = flags.run,
                                .checkpoint_interval = flags.interval,
                                .metric = "accuracy",
                                .resume = flags.resume,
                                .progress = true,  // with the mean loss over the ranks
                                .log_interval = 1};
  Trainer trainer(ddp, optimizer, training);
  trainer.step_scheduler(schedule);
  auto profiler = flags.profile.empty() ? std::nullopt : std::optional(profile(10, flags.profile));
  if (profiler)
    trainer.on_step([&](auto&) { profiler->step(); }).on_epoch_end([&](auto&) { profiler->stop(); });
  if (!flags.run.empty()) trainer.on_log(tensorboard_logger(flags.run + "/events"));
  trainer.on_validate([&] {
    metrics::Accuracy accuracy;
    metrics::AverageMeter loss;
    for (auto& [images, targets] : val_loader) {
      const auto scores = net->forward(images);
      accuracy.update(scores, targets);
      loss.update(cross_entropy(scores, targets), targets.size(0));
    }
    return Scalars{{"accuracy", accuracy.compute()}, {"val_loss", loss.compute()}};
  });
  trainer.on_epoch_end(
      [&, console = console_logger()](auto& validation) { console.log(trainer.step(), validation); });
  trainer.fit(train_loader,
              [&](auto& batch) { return cross_entropy(ddp->forward(batch.data), batch.target); });
  if (trainer.interrupted()) return kExitInterrupted;
  if (context.is_main_process() && !flags.run.empty()) save(state_dict(net), flags.run + "/weights.pt");
  return 0;
}

int main(int argc, char** argv) {
  CLI::App app("Fine-tunes a ResNet on a folder of pictures, in as many processes as it is started with");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--folder", flags.folder, "Folder of the pictures; drawn where it does not exist");
  app.add_option("--arch", flags.arch)->check(CLI::IsMember({"resnet18", "resnet34"}));
  app.add_option("--weights", flags.weights, "File of pretrained weights, .pth or .safetensors");
  app.add_flag("--freeze-layers", flags.freeze_layers, "Train the last layer only");
  app.add_flag("--syncBN", flags.sync_bn, "Normalize over the batches of all ranks");
  app.add_flag("--bf16", flags.bf16, "Mixed precision");
  app.add_flag("--channels-last", flags.channels_last, "The channels_last memory format");
  app.add_option("--size", flags.size, "Height and width of the training pictures");
  app.add_option("--epochs", flags.epochs);
  app.add_option("--batch-size", flags.batch_size, "Pictures per step and rank");
  app.add_option("--workers", flags.workers, "Threads that decode");
  app.add_option("--lr", flags.lr, "Learning rate after the warm-up of one epoch");
  app.add_option("--lrf", flags.lrf, "The last learning rate as a share of --lr");
  app.add_option("--seed", flags.seed, "Seed of the split, the order and the weights");
  app.add_option("--interval", flags.interval, "Steps between checkpoints; 0: one per epoch");
  auto* run = app.add_option("--run", flags.run, "Folder for checkpoints, weights and TensorBoard");
  app.add_option("--profile", flags.profile, "File for a Chrome trace of up to ten steps");
  app.add_flag("--resume", flags.resume, "Continue from the newest checkpoint, if any")->needs(run);
  CLI11_PARSE(app, argc, argv);
  try {
    return train(flags);
  } catch (const std::exception& error) {
    std::cerr << "image_folder_finetune: " << error.what() << std::endl;
    return 1;
  }
}
