// SPDX-License-Identifier: BSD-3-Clause
// A custom communication hook: gradients travel as 16-bit integers with a scale that the ranks agree on
// first. The rounding error is added to the next step's gradients.
//
//   lockstep run --nproc-per-node 2 build/release/bin/03_comm_hook
//   lockstep run --nproc-per-node 2 build/release/bin/03_comm_hook --trace trace.json
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

// Called for each bucket when its gradients are complete. Starts the first reduction and returns the steps
// that follow it. Sums are 32-bit integers, so 65,536 ranks can add 16-bit values without overflow.
class Quantize {
 public:
  lockstep::BucketWork operator()(lockstep::GradBucket& bucket) {
    const auto group = bucket.process_group();
    const auto gradients = bucket.buffer();
    auto& error = errors_[bucket.parameters().front().name];
    if (error.defined() && error.sizes() == gradients.sizes()) gradients.add_(error);
    const auto scale = gradients.abs().max().clamp_min(1e-12).reshape({1});
    auto agreement = group.all_reduce_async(scale, lockstep::ReduceOp::MAX);
    return {std::move(agreement), [=, &error] {
              const auto steps = (gradients / scale * 32767).round();
              error = gradients - steps * scale / 32767;
              const auto sum = steps.to(torch::kInt);
              auto reduction = group.all_reduce_async(sum);
              return lockstep::BucketWork(std::move(reduction), sum).then([=](const at::Tensor& total) {
                return total.to(torch::kFloat) * scale / (32767.0 * group.size());
              });
            }};
  }

 private:
  std::map<std::string, at::Tensor> errors_;  // rounding errors, by the first parameter of each bucket
};

int main(int argc, char** argv) {
  try {
    const auto context = lockstep::init();
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
    lockstep::DistributedDataParallel ddp(net);
    auto hook = std::make_shared<Quantize>();  // shared by the copies of the function
    ddp->register_comm_hook([hook](lockstep::GradBucket& bucket) { return (*hook)(bucket); });
    if (argc == 3 && std::string(argv[1]) == "--trace") lockstep::trace(ddp, argv[2], 5);

    torch::optim::SGD optimizer(ddp->parameters(), 0.2);
    torch::manual_seed(100 + context.rank());  // different data on each rank
    for (int step = 0; step <= 200; ++step) {
      const auto x = torch::randn({32, 16});
      const auto y = x.narrow(1, 0, 4).sum(1, true).tanh();
      optimizer.zero_grad();
      auto loss = torch::mse_loss(ddp->forward(x), y);
      loss.backward();
      optimizer.step();
      loss = loss.detach();
      context.group().all_reduce(loss, lockstep::ReduceOp::AVG);
      if (context.is_main_process() && step % 50 == 0) {
        std::cout << "step " << step << ": loss " << loss.item<float>() << std::endl;
      }
    }
    const auto stats = ddp->stats();
    if (context.is_main_process()) {
      std::cout << stats.steps << " steps; on average " << stats.mean.communication_exposed
                << " ms of communication not hidden behind backward" << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "03_comm_hook: " << error.what() << '\n';
    return 1;
  }
}
