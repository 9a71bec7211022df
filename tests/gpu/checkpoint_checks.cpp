// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <filesystem>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"
#include "support/temp_folder.h"

namespace lockstep::gpu {
namespace {

namespace fs = std::filesystem;

const c10::Device kGpu(c10::kCUDA, 0);

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Dropout(0.5),
                            torch::nn::Linear(32, 2));
  net->to(kGpu);
  return net;
}

// A file of GPU tensors is loaded to map_location, by default the CPU.
void devices_of_a_file() {
  const testing::TempFolder folder;
  const auto file = folder.path() / "net.pt";
  auto net = make_net();
  save(Value(state_dict(net)), file);
  const auto on_cpu = load(file);
  const auto on_gpu = load(file, {.map_location = kGpu});
  for (const auto& parameter : net->named_parameters()) {
    const auto& of_cpu = on_cpu.as_dict().at(parameter.key()).as_tensor();
    const auto& of_gpu = on_gpu.as_dict().at(parameter.key()).as_tensor();
    require(of_cpu.device().is_cpu() && of_gpu.device() == kGpu, "tensors are on map_location");
    require(torch::equal(of_cpu, parameter.value().cpu()) && torch::equal(of_gpu, parameter.value()),
            "and have their values");
  }
  torch::nn::Sequential plain(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Dropout(0.5),
                              torch::nn::Linear(32, 2));
  load_state_dict(plain, load(file).as_dict());
  require(torch::equal(plain->parameters().front(), net->parameters().front().cpu()),
          "a GPU's weights go into a module on the CPU");
  load_state_dict(net, load(file).as_dict());
  safetensors::save_file(state_dict(net), folder.path() / "net.safetensors");
  const auto again = safetensors::load_file(folder.path() / "net.safetensors");
  require(torch::equal(again.at("0.weight").as_tensor().cpu(), net->parameters().front().cpu()),
          "safetensors takes GPU tensors");
}

struct Training {
  torch::nn::Sequential net = make_net();
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(1e-2)};

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer.zero_grad();
      const auto x = torch::randn({16, 8}, torch::TensorOptions().device(kGpu));
      net->forward(x).pow(2).mean().backward();
      optimizer.step();
    }
  }
};

// 20 steps are 10, a checkpoint in other objects, and 10 more: optimizer, dropout and noise of the GPU
// included.
void resume_is_exact() {
  const auto context = init();
  const testing::TempFolder folder;
  torch::manual_seed(5);
  Training whole;
  whole.steps(10);
  CheckpointManager manager(folder.path(), {.async_save = true});
  TrainingState state;
  state.add("model", whole.net).add("optimizer", whole.optimizer).add_generator();
  manager.save(10, state.state_dict());
  whole.steps(10);  // while the checkpoint is written
  manager.wait();
  torch::manual_seed(99);
  Training second;
  TrainingState other;
  other.add("model", second.net).add("optimizer", second.optimizer).add_generator();
  other.load_state_dict(manager.load_latest()->contents.as_dict());
  second.steps(10);
  for (std::size_t i = 0; i < whole.net->parameters().size(); ++i) {
    require(torch::equal(whole.net->parameters()[i], second.net->parameters()[i]),
            "the resumed run has the same weights");
  }
}

}  // namespace

std::vector<Check> checkpoint_checks() {
  return {
      {"checkpoint_devices", 1, "files of GPU tensors to the CPU and back", devices_of_a_file},
      {"checkpoint_resume", 1, "a resumed run on the GPU continues bit for bit", resume_is_exact},
  };
}

}  // namespace lockstep::gpu
