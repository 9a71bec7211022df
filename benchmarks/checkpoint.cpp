// SPDX-License-Identifier: BSD-3-Clause
// Saving and loading a state dict of float32 tensors of 16 MB, and commits of trainings. The Python twin is
// pytorch/checkpoint.py.
#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sys/mman.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <lockstep/lockstep.h>
#include <lockstep/serialize/safetensors.h>

#include "base/unique_fd.h"
#include "checkpoint/commit_memory.h"
#include "checkpoint/training_state_access.h"

namespace lockstep::bench::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr std::int64_t kNumbers = 4 << 20;

struct Flags {
  std::string what = "pt";
  std::string folder = ".";
  int megabytes = 1024;
  int iterations = 3;
};

template <typename Action>
double seconds_of(Action action) {
  const auto start = Clock::now();
  action();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

lockstep::Dict make_dict(int megabytes) {
  auto dict = lockstep::ordered_dict();
  for (int i = 0; i < megabytes / 16; ++i)
    dict.set("layer" + std::to_string(i), torch::full({kNumbers}, static_cast<float>(i)));
  return dict;
}

void rewrite(const lockstep::Dict& dict) {
  for (const auto& [key, value] : dict) value.as_tensor().add_(1);
}

// One element of each, so that what is mapped is at least there.
double touch(const lockstep::Dict& dict) {
  double sum = 0;
  for (const auto& [key, value] : dict) sum += value.as_tensor()[0].item<double>();
  return sum;
}

// Seconds of each commit by a rank that trains: of its own work, without the other ranks. The first two, which get the
// memory, do not count.
template <typename Module, typename Optimizer>
std::vector<double> commit_times(Module net, Optimizer optimizer, int iterations) {
  lockstep::TrainingState state;
  state.add("net", net).add("optimizer", optimizer).add_generator();
  const lockstep::UniqueFd file(::memfd_create("commits", 0));
  lockstep::checkpointing::CommitMemory memory(file.get());
  std::vector<double> times;
  for (int i = 0; i < iterations + 2; ++i) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::full_like(parameter, 1e-3);
    optimizer.step();  // rewrites parameters and states
    const auto seconds = seconds_of([&] {
      memory.write(i, {{.state = lockstep::checkpointing::TrainingStateAccess::own_state_dict(state)}});
    });
    if (i >= 2) times.push_back(seconds);
  }
  return times;
}

nlohmann::json time_commits(int iterations) {
  const auto resnet = lockstep::models::resnet18();
  const lockstep::models::GPT2 gpt(lockstep::models::GPT2Options{
      .vocab_size = 96, .n_positions = 64, .n_embd = 128, .n_layer = 4, .n_head = 4});  // of examples/gpt.cpp
  using torch::optim::SGDOptions;
  return {
      {"commit_resnet18",
       commit_times(resnet, torch::optim::SGD(resnet->parameters(), SGDOptions(0.1).momentum(0.9)),
                    iterations)},
      {"commit_gpt", commit_times(gpt, lockstep::optim::FusedAdamW(gpt->parameters(), 1e-3), iterations)}};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Times saving and loading of checkpoints");
  app.add_option("what", flags.what, "pt, safetensors, async or commit")->required();
  app.add_option("--folder", flags.folder, "Where files go")->capture_default_str();
  app.add_option("--megabytes", flags.megabytes, "Of tensors")->capture_default_str();
  app.add_option("--iterations", flags.iterations, "Times that each is done")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  lockstep::enable_caching_cpu_allocator();  // as init() does
  if (flags.what == "commit") {
    std::cout << time_commits(flags.iterations).dump() << std::endl;
    return 0;
  }
  const auto dict = make_dict(flags.megabytes);
  const fs::path folder(flags.folder);
  nlohmann::json times;
  double sum = 0;
  const auto time = [&](const char* name, const auto& action) { times[name].push_back(seconds_of(action)); };
  std::optional<lockstep::CheckpointManager> manager;
  if (flags.what == "async") {
    manager.emplace(folder / "ours",
                    lockstep::CheckpointManagerOptions{.keep_last = 1, .async_save = true, .sync = false});
    manager->save(0, dict);  // makes room for the copy
    manager->wait();
  }
  for (int i = 0; i < flags.iterations; ++i) {
    rewrite(dict);
    if (flags.what == "pt") {
      const auto file = folder / "ours.pt";
      fs::remove(file);
      time("save", [&] { lockstep::save(dict, file, {.sync = false}); });
      time("save_over", [&] { lockstep::save(dict, file, {.sync = false}); });
      time("load", [&] { sum += touch(lockstep::load(file).as_dict()); });
      time("load_mmap", [&] { sum += touch(lockstep::load(file, {.mmap = true}).as_dict()); });
    } else if (flags.what == "safetensors") {
      const auto file = folder / "ours.safetensors";
      fs::remove(file);
      time("save_safetensors",
           [&] { lockstep::safetensors::save_file(dict, file, {.metadata = {}, .sync = false}); });
      time("open_safetensors",
           [&] { sum += static_cast<double>(lockstep::safetensors::SafeOpen(file).keys().size()); });
      time("load_safetensors", [&] { sum += touch(lockstep::safetensors::load_file(file, {.mmap = true})); });
    } else {
      time("async_stall", [&] { manager->save(i + 1, dict); });
      manager->wait();
    }
  }
  times["sum"] = sum;
  std::cout << times.dump() << std::endl;
  return 0;
}

}  // namespace lockstep::bench::checkpoint
