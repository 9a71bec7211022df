// SPDX-License-Identifier: BSD-3-Clause
// A net cut into stages, one or two on each rank, and trained with any of PyTorch's pipeline schedules.
//
//   lockstep run --nproc-per-node 2 build/release/bin/pipeline
//   lockstep run --nproc-per-node 2 build/release/bin/pipeline ZBVZeroBubble 2 schedule.svg
#include <fstream>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include <lockstep/lockstep.h>
#include <lockstep/pipelining/pipeline.h>

namespace pipelining = lockstep::pipelining;

torch::nn::Sequential make_net() {
  torch::manual_seed(0);  // all ranks make the same net, and keep their stages of it
  torch::nn::Sequential net;
  for (int layer = 0; layer < 8; ++layer) {
    net->push_back(torch::nn::Linear(layer == 0 ? 16 : 64, 64));
    net->push_back(torch::nn::Tanh());
  }
  net->push_back(torch::nn::Linear(64, 1));
  return net;
}

int main(int argc, char** argv) {
  try {
    const std::string name = argc > 1 ? argv[1] : "1F1B";
    const int local_stages = argc > 2 ? std::stoi(argv[2]) : 1;
    const auto context = lockstep::init();
    const auto plan = pipelining::make_plan(name, context.world_size(), local_stages, 8);
    if (argc > 3 && context.is_main_process())
      std::ofstream(argv[3]) << pipelining::draw_svg(pipelining::simulate(plan));

    const auto parts = pipelining::split_sequential(make_net(), plan.num_stages);
    const auto rank_of = pipelining::stage_to_rank(plan);
    std::vector<pipelining::PipelineStage> stages;
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < plan.num_stages; ++i) {
      const auto index = static_cast<std::size_t>(i);
      if (rank_of[index] != context.rank()) continue;
      stages.emplace_back(parts[index], i, plan.num_stages);
      for (const auto& parameter : parts[index]->parameters()) parameters.push_back(parameter);
    }
    pipelining::PipelineSchedule schedule(
        stages, plan, [](const auto& output, const auto& target) { return torch::mse_loss(output, target); });

    torch::optim::SGD optimizer(parameters, 0.2);
    torch::manual_seed(1);  // the first stage takes the inputs, the last one the targets
    for (int step = 0; step <= 200; ++step) {
      const auto x = torch::randn({64, 16});
      const auto y = x.narrow(1, 0, 4).sum(1, true).tanh();
      optimizer.zero_grad();
      pipelining::Tensors losses;
      schedule.step({x}, y, &losses);
      optimizer.step();
      if (!losses.empty() && step % 50 == 0)
        std::cout << "step " << step << ": loss " << torch::stack(losses).mean().item<float>() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
