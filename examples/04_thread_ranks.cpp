// SPDX-License-Identifier: BSD-3-Clause
// Two ranks that are threads of this process train a net with SyncBatchNorm. No launcher is needed.
//
//   build/release/bin/04_thread_ranks
#include <iostream>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out->forward(at::relu(norm->forward(in->forward(x)))); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(8, 32))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(32))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(32, 1))};
};
TORCH_MODULE(Net);

// The function to learn: the product of the first two of eight numbers.
at::Tensor target_of(const at::Tensor& x) { return x.select(1, 0).mul(x.select(1, 1)).unsqueeze(1); }

void train(lockstep::Context& context) {
  lockstep::manual_seed(1);  // torch::manual_seed would seed the generator that all threads share
  const auto net = lockstep::convert_sync_batchnorm(Net());
  lockstep::DistributedDataParallel ddp(net, {.device_ids = {context.device()}});
  torch::optim::Adam optimizer(ddp->parameters(), 1e-2);
  lockstep::manual_seed(100 + static_cast<std::uint64_t>(context.rank()));  // different data on each rank
  for (int step = 1; step <= 400; ++step) {
    const auto x = torch::randn({16, 8}, context.device());
    const auto loss = torch::nn::functional::mse_loss(ddp->forward(x), target_of(x));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    auto mean = loss.detach().clone();
    context.group().all_reduce(mean, lockstep::ReduceOp::AVG);
    if (context.is_main_process() && step % 100 == 0) {
      std::cout << "step " << step << ": loss " << mean.item<float>() << std::endl;
    }
  }
}

}  // namespace

int main() {
  try {
    lockstep::spawn_threads(2, train);
  } catch (const std::exception& error) {
    std::cerr << "04_thread_ranks: " << error.what() << '\n';
    return 1;
  }
}
