// SPDX-License-Identifier: BSD-3-Clause
// A rank of a training that continues without the ranks that are lost: training_rank shrinking <folder> <mode> [kills]
//
// kills: "<rank>@<step>,...": that rank of the launcher kills itself in backward of that step; "<rank>@load": when it
// restores its state after the loss of another one. Before the end it waits for the file <folder>/enough.
//
// Writes to stdout "pid <pid> of <rank of the launcher> begins as <rank> of <world size> at step <step>", and at the end "trained
// <rank>: <digest of parameters and optimizer>"; to <folder>/seen.<epoch>.<step>.<world size>.<rank of the launcher> the
// samples of a step, and before each commit its state to <folder>/state.<step>.<rank of the launcher>.
//
// Modes:
//   train           SyncBatchNorm and BatchNorm, dropout, a scheduler, a GradScaler, a validation after each epoch
//   sampler         the same with a DistributedSampler of the program
//   from <step> <rank of the launcher>,...   "train" from the states of these ranks, without elastic::run()
//   frozen, stopped, exits, throws   "train"; rank 1 of the launcher stops in step 10, exits with code 3, or throws
//                   there; "frozen" with a timeout of the group of 5 s
//   nan             "train"; all ranks find in step 10 that a loss is not finite
//   trainer         the Trainer has the loop
//   zero, sharded, outside, iterable, random, other, gradients   something that a run with fewer ranks cannot have
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "faults/small_training.h"

namespace lockstep::testing::shrinking {
namespace {

using namespace std::chrono_literals;
namespace data = lockstep::data;
using lockstep::testing::digest;
using lockstep::testing::wait_for;

constexpr std::int64_t kSamples = 240;
constexpr int kEpochs = 4;
constexpr std::int64_t kBatch = 5;

// The target of a sample is its index.
struct Samples {
  std::size_t size() const { return kSamples; }
  data::Batch get_batch(const at::Tensor& indices) const {
    return {(indices.to(at::kFloat).unsqueeze(1) + torch::arange(16)).sin(), indices.clone()};
  }
};

at::Tensor classes_of(const at::Tensor& indices) { return indices.remainder(4); }

struct Plan {
  std::filesystem::path folder;
  std::string kills;
  std::string rank = std::getenv("RANK");  // of the launcher

  void die_at(const std::string& place) const {
    std::istringstream words(kills);
    for (std::string word; std::getline(words, word, ',');)
      if (word == rank + "@" + place) ::raise(SIGKILL);
  }

  void note_samples(std::int64_t epoch, std::int64_t step, int ranks, const at::Tensor& indices) const {
    std::ofstream file(folder / fmt::format("seen.{}.{}.{}.{}", epoch, step, ranks, rank));
    for (std::int64_t i = 0; i < indices.numel(); ++i) file << indices[i].item<std::int64_t>() << ' ';
  }

  std::filesystem::path state(std::int64_t step, const std::string& of) const {
    return folder / fmt::format("state.{}.{}", step, of);
  }
};

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  torch::manual_seed(7);
  return Sequential(Linear(16, 32), BatchNorm1d(32), ReLU(), Dropout(0.3), Linear(32, 32),
                    lockstep::nn::SyncBatchNorm(BatchNormOptions(32)), ReLU(), Linear(32, 4));
}

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

std::string digest_of_training(const torch::nn::Module& net, const torch::optim::Optimizer& optimizer) {
  auto tensors = net.parameters();
  const auto state = lockstep::state_dict(optimizer);
  for (const auto& [index, values] : state.at("state").as_dict())
    for (const auto& [name, value] : values.as_dict())
      if (value.is<at::Tensor>()) tensors.push_back(value.as_tensor());
  return digest(tensors);
}

data::DataLoaderOptions loader_options(const std::string& mode, const lockstep::Context& context) {
  data::DataLoaderOptions options{.batch_size = kBatch, .num_workers = 1};
  if (mode == "sampler") {
    options.sampler = data::DistributedSampler(kSamples);
  } else if (mode == "random") {
    options.sampler = data::RandomSampler(kSamples);
  } else if (mode == "other") {
    options.sampler = data::DistributedSampler(kSamples, context.world_size(), context.rank());
  } else {
    options.shuffle = true;
    options.seed = 0;  // without it a run that is started with one rank has another order
  }
  return options;
}

struct Endless {
  struct Stream {
    std::optional<at::Tensor> next() { return torch::zeros({1}); }
  };
  std::unique_ptr<Stream> iter(const data::StreamShare& /*share*/) const {
    return std::make_unique<Stream>();
  }
};

// The state of a run that cannot continue with fewer ranks.
void add_refused(lockstep::TrainingState& state, const std::string& mode) {
  static auto net = make_net();
  if (mode == "zero") {
    static lockstep::ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->parameters(), 0.1);
    state.add("zero", optimizer);
  } else if (mode == "sharded" || mode == "outside") {
    static auto part = torch::nn::Sequential(torch::nn::Linear(4, 4));
    static auto shards = lockstep::fully_shard(part, {.share_memory = false});
    if (mode == "sharded") state.add("shards", shards);
  } else if (mode == "iterable") {
    static data::DataLoader loader(Endless{}, data::DataLoaderOptions{.batch_size = 5});
    state.add("stream", loader);
  } else if (mode == "gradients") {
    static torch::nn::Linear layer(2, 2);
    static torch::optim::SGD optimizer(layer->parameters(), 0.1);
    layer->weight.mutable_grad() = torch::ones({2, 2});
    state.add_gradients("gradients", layer).add("of gradients", optimizer);
  }
}

void validate(torch::nn::Sequential& net, auto& loader, const lockstep::Context& context) {
  const torch::NoGradGuard no_grad;
  net->eval();
  auto count = torch::zeros({1});
  for (auto& batch : loader) count += static_cast<double>(batch.target.numel());
  context.group().all_reduce(count);
  if (count.item<double>() != kSamples)
    throw std::runtime_error(fmt::format("{} samples were validated", count.item<double>()));
  net->train();
}

void fail(const std::string& mode, const std::string& rank) {
  if (mode == "nan") throw lockstep::NonFiniteError("the loss is not finite");
  if (rank != "1") return;
  if (mode == "frozen" || mode == "stopped") ::raise(SIGSTOP);
  if (mode == "exits") std::_Exit(3);
  if (mode == "throws") throw std::runtime_error("a mistake");
}

void train(const Plan& plan, const std::string& mode, std::int64_t from, const std::string& of) {
  const auto context = lockstep::init({.timeout = mode == "frozen" ? 5s : 60s});
  auto net = make_net();
  lockstep::Dict loaded;
  if (from >= 0) {
    std::istringstream words(of);
    std::string rank;
    for (int i = 0; i <= context.rank(); ++i) std::getline(words, rank, ',');
    loaded = lockstep::load(plan.state(from, rank)).as_dict();
    lockstep::load_state_dict(net, loaded.at("net").as_dict());
  }
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
  torch::optim::StepLR scheduler(optimizer, 20, 0.9);
  lockstep::amp::GradScaler scaler(at::kCPU, {.growth_interval = 10});
  const auto place = net->parameters().front().data_ptr();
  data::DataLoader loader(Samples(), loader_options(mode, context));
  data::DataLoader validation(Samples(),
                              {.batch_size = 7, .sampler = data::DistributedEvalSampler(kSamples)});
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  std::int64_t step = 0, epoch = 0;
  lockstep::TrainingState state;
  state.add("model", ddp).add("optimizer", optimizer).add("scheduler", scheduler).add("scaler", scaler);
  state.add("loader", loader).add("step", step).add("epoch", epoch).add_generator();
  state.add_functions(
      "victim", [] { return lockstep::Value(0); }, [&](const lockstep::Value&) { plan.die_at("load"); });
  add_refused(state, mode);
  if (from >= 0) {
    lockstep::load_state_dict(optimizer, loaded.at("optimizer").as_dict());
    lockstep::load_state_dict(scheduler, loaded.at("scheduler").as_dict());
    scaler.load_state_dict(loaded.at("scaler").as_dict());
    loader.seek(lockstep::position_of(loaded.at("position").as_dict()));
    step = loaded.at("step").as_int();
    epoch = loaded.at("epoch").as_int();
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(loaded.at("generator").as_tensor());
  }
  lockstep::elastic::run(state, [&](const lockstep::Context& run) {
    std::cout << fmt::format("pid {} of {} begins as {} of {} at step {}\n", ::getpid(), plan.rank,
                             run.rank(), run.world_size(), step)
              << std::flush;
    for (; epoch < kEpochs; ++epoch) {
      loader.set_epoch(epoch);
      for (auto& batch : loader) {
        if (from < 0) plan.note_samples(epoch, step, run.world_size(), batch.target);
        auto loss = torch::nn::functional::cross_entropy(ddp->forward(batch.data), classes_of(batch.target));
        plan.die_at(std::to_string(step));
        if (step == 10) fail(mode, plan.rank);
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        scheduler.step();
        optimizer.zero_grad();
        ++step;
        const lockstep::Dict own{{"net", lockstep::state_dict(net)},
                                 {"optimizer", lockstep::state_dict(optimizer)},
                                 {"scheduler", lockstep::state_dict(scheduler)},
                                 {"scaler", scaler.state_dict()},
                                 {"position", lockstep::position_dict(loader.position())},
                                 {"step", step},
                                 {"epoch", epoch},
                                 {"generator", generator_state()}};
        if (from < 0)
          std::ofstream(plan.state(step, plan.rank), std::ios::binary) << lockstep::save_bytes(own);
        state.commit();
      }
      validate(net, validation, run);
    }
    wait_for(plan.folder / "enough", run);
  });
  if (place != net->parameters().front().data_ptr()) throw std::runtime_error("the parameters have moved");
  std::cout << fmt::format("trained {}: {}\n", context.rank(), digest_of_training(*net, optimizer))
            << std::flush;
}

void train_by_trainer(const Plan& plan) {
  const auto context = lockstep::init({.timeout = 60s});
  auto net = make_net();
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
  data::DataLoader loader(Samples(), {.batch_size = kBatch, .shuffle = true});
  data::DataLoader validation(Samples(),
                              {.batch_size = 7, .sampler = data::DistributedEvalSampler(kSamples)});
  lockstep::Trainer trainer(ddp, optimizer,
                            {.epochs = kEpochs,
                             .accumulation_steps = 2,
                             .checkpoints = plan.folder / "run",
                             .checkpoint_interval = 10,
                             .elastic = true});
  trainer.on_validate([&] {
    validate(net, validation, context);
    std::cout << fmt::format("epoch {} validated by {} ranks\n", trainer.epoch(), context.world_size())
              << std::flush;
    return lockstep::Scalars{};
  });
  std::int64_t number = 0;  // of the batch: two are a step
  trainer.state().add("number", number);
  trainer.fit(loader, [&](auto& batch) {
    plan.note_samples(trainer.epoch(), number, context.world_size(), batch.target);
    plan.die_at(std::to_string(number++));
    return torch::nn::functional::cross_entropy(ddp->forward(batch.data), classes_of(batch.target));
  });
  std::cout << fmt::format("trained {}: {}\n", context.rank(), digest_of_training(*net, optimizer))
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    const std::string mode = argv[2];
    const Plan plan{.folder = argv[1], .kills = argc == 4 ? argv[3] : ""};
    if (mode == "trainer") {
      train_by_trainer(plan);
    } else if (mode == "from") {
      train(plan, "train", std::atoll(argv[3]), argv[4]);
    } else {
      train(plan, mode, -1, "");
    }
  } catch (const std::exception& error) {
    std::cerr << "training_rank shrinking: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace lockstep::testing::shrinking
