// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/distributed.h>

int main() {
  auto context = lockstep::init();
  torch::manual_seed(0);
  torch::nn::Linear net(2, 1);
  lockstep::DistributedDataParallel ddp(net);
  torch::optim::SGD optimizer(ddp->parameters(), 0.1);
  const auto inputs = torch::rand({64, 2});
  const auto targets = inputs.sum(1, true);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp->forward(inputs), targets);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  return last < first / 2 ? 0 : 1;
}
