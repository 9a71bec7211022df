// SPDX-License-Identifier: BSD-3-Clause
// Classifies point clouds with DGCNN: ModelNet40, or without a folder spheres, cubes and cylinders.
//
//   lockstep run --nproc-per-node 2 build/release/bin/point_clouds --weights shapes.pt
//   build/release/bin/point_clouds --weights shapes.pt --test
//   lockstep run --nproc-per-node 2 build/release/bin/point_clouds --root modelnet40_ply_hdf5_2048 --epochs
//   250
#include <iostream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;

struct Flags {
  std::string root, weights, run;
  std::int64_t epochs = 5, batch_size = 8, points = 128, k = 10, seed = 1, interval = 0;
  double lr = 0.1;
  bool test = false, resume = false;
};

// Points on the surface of a sphere, a cube or a cylinder: [points, 3].
torch::Tensor draw_shape(std::int64_t shape, std::int64_t points) {
  const auto direction = torch::randn({points, 3});
  if (shape == 0) return direction / direction.norm(2, 1, true);
  if (shape == 1) return direction / std::get<0>(direction.abs().max(1, true));
  const auto circle = direction.narrow(1, 0, 2);
  return torch::cat({circle / circle.norm(2, 1, true), torch::rand({points, 1}) * 2 - 1}, 1);
}

data::TensorDataset draw_shapes(std::int64_t count, std::int64_t points,
                                const data::SampleTransforms& transforms) {
  std::vector<torch::Tensor> clouds;
  for (std::int64_t i = 0; i < count; ++i) clouds.push_back(draw_shape(i % 3, points));
  return {torch::stack(clouds), torch::arange(count) % 3, transforms};
}

models::DGCNN make_net(const Flags& flags) {
  return models::DGCNN(models::DGCNNOptions{.output_channels = flags.root.empty() ? 3 : 40, .k = flags.k});
}

// Over all ranks, with each cloud on exactly one of them.
template <typename Dataset>
Scalars evaluate(models::DGCNN& net, const Dataset& test_set, const Flags& flags, const Context& context) {
  const auto sampler = std::make_shared<data::DistributedEvalSampler>(test_set);
  data::DataLoader loader(test_set,
                          {.batch_size = flags.batch_size, .sampler = sampler, .device = context.device()});
  metrics::ConfusionMatrix confusion(flags.root.empty() ? 3 : 40);
  const torch::NoGradGuard no_grad;
  net->eval();
  for (auto& [clouds, targets] : loader) confusion.update(net->forward(clouds.transpose(1, 2)), targets);
  const auto matrix = confusion.compute();
  return {{"accuracy", metrics::recall(matrix, "micro")},
          {"class_mean_accuracy", metrics::balanced_accuracy(matrix)}};
}

template <typename Dataset>
int train(const Dataset& train_set, const Dataset& test_set, const Flags& flags, const Context& context) {
  data::DataLoader loader(train_set, {.batch_size = flags.batch_size,
                                      .shuffle = true,
                                      .drop_last = true,
                                      .seed = flags.seed,
                                      .device = context.device(),
                                      .augmentation_seed = flags.seed});
  auto net = make_net(flags);
  convert_sync_batchnorm(net);  // statistics over the clouds of all ranks
  DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(flags.lr).momentum(0.9).weight_decay(1e-4));
  optim::CosineAnnealingLR schedule(optimizer, flags.epochs, flags.lr / 100);
  Trainer trainer(ddp, optimizer,
                  {.epochs = flags.epochs,
                   .checkpoints = flags.run,
                   .checkpoint_interval = flags.interval,
                   .metric = "accuracy",
                   .resume = flags.resume,
                   .progress = true,
                   .log_interval = 5});
  trainer.epoch_scheduler(schedule).on_log(console_logger()).on_validate([&] {
    return evaluate(net, test_set, flags, context);
  });
  const auto smooth = torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(0.2);
  trainer.fit(loader, [&](auto& batch) {
    return torch::nn::functional::cross_entropy(ddp->forward(batch.data.transpose(1, 2)), batch.target,
                                                smooth);
  });
  if (trainer.interrupted()) return kExitInterrupted;
  // The names of net, not of ddp: without "module.", for one device as for several.
  if (context.is_main_process() && !flags.weights.empty()) save(state_dict(net), flags.weights);
  return 0;
}

template <typename Dataset>
int run(const Dataset& train_set, const Dataset& test_set, const Flags& flags, const Context& context) {
  if (!flags.test) return train(train_set, test_set, flags, context);
  auto net = make_net(flags);
  load_pretrained(net, flags.weights);
  net->to(context.device());
  const auto scores = evaluate(net, test_set, flags, context);
  if (context.is_main_process())
    std::cout << fmt::format("accuracy {:.4f}, class-mean accuracy {:.4f}\n", scores.at("accuracy"),
                             scores.at("class_mean_accuracy"));
  return 0;
}

// Returns the exit code.
int run(const Flags& flags) {
  const auto context = init();
  torch::manual_seed(static_cast<std::uint64_t>(flags.seed));
  const auto augment = [](const torch::Tensor& points, const transforms::OptionalGenerator& generator) {
    return data::shuffle_points(data::translate_point_cloud(points, generator), generator);
  };
  if (flags.root.empty())
    return run(draw_shapes(96, flags.points, {.transform = augment}), draw_shapes(31, flags.points, {}),
               flags, context);
  const auto points = flags.points;
  return run(data::ModelNet40(flags.root, {.train = true, .num_points = points, .transform = augment}),
             data::ModelNet40(flags.root, {.train = false, .num_points = points}), flags, context);
}

int main(int argc, char** argv) {
  CLI::App app("Classifies point clouds with DGCNN, in as many processes as it is started with");
  app.option_defaults()->always_capture_default();
  Flags flags;
  app.add_option("--root", flags.root, "Folder of ModelNet40; without it the clouds are drawn");
  auto* weights = app.add_option("--weights", flags.weights, "File of the trained weights");
  app.add_flag("--test", flags.test, "Test these weights instead of training")->needs(weights);
  app.add_option("--epochs", flags.epochs);
  app.add_option("--batch-size", flags.batch_size, "Clouds per step and rank");
  app.add_option("--points", flags.points, "Points per cloud");
  app.add_option("--k", flags.k, "Neighbours of a point");
  app.add_option("--lr", flags.lr);
  app.add_option("--seed", flags.seed);
  app.add_option("--interval", flags.interval, "Steps between checkpoints; 0: one per epoch");
  auto* folder = app.add_option("--run", flags.run, "Folder for checkpoints");
  app.add_flag("--resume", flags.resume, "Continue from the newest checkpoint, if any")->needs(folder);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(flags);
  } catch (const std::exception& error) {
    std::cerr << "point_clouds: " << error.what() << std::endl;
    return 1;
  }
}
