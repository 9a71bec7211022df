// SPDX-License-Identifier: BSD-3-Clause
// One C++ rank of a job whose other ranks may be Python's; mixed_jobs.py starts it and has the same steps:
// mixed_jobs <backend> <alone|with_python> <train|other_model> <file of the results>
#include <string>

#include <lockstep/lockstep.h>

#include "parity/models/mnist_nets.h"

namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int classes)
      : fc1(register_module("fc1", torch::nn::Linear(196, 64))),
        norm(register_module("norm", torch::nn::BatchNorm1d(64))),
        fc2(register_module("fc2", torch::nn::Linear(64, classes))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return fc2->forward(torch::relu(norm->forward(fc1->forward(x))));
  }

  torch::nn::Linear fc1;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear fc2;
};
TORCH_MODULE(Net);

lockstep::List collectives(const lockstep::Context& context) {
  const auto& group = context.group();
  const auto own = (torch::arange(6, torch::kFloat) + 10.0 * context.rank()).to(context.device());
  auto sum = own.clone();
  group.all_reduce(sum);
  auto most = own.clone();
  group.all_reduce(most, lockstep::ReduceOp::MAX);
  auto first = own.clone();
  group.broadcast(first, 0);
  std::vector<torch::Tensor> all{torch::empty_like(own), torch::empty_like(own)};
  group.all_gather(all, own);
  auto part = torch::empty_like(own.slice(0, 0, 3));
  group.reduce_scatter_tensor(part, own);
  const int peer = 1 - context.rank();
  auto received = torch::empty_like(own);
  if (context.rank() == 0) {
    group.send(own, peer);
    group.recv(received, peer);
  } else {
    group.recv(received, peer);
    group.send(own, peer);
  }
  group.barrier();
  auto sub = own.clone();
  context.new_group({0, 1})->all_reduce(sub);
  return {sum, most, first, all[0], all[1], part, received, sub};
}

std::pair<torch::Tensor, torch::Tensor> batch(const lockstep::Context& context,
                                              std::vector<std::int64_t> shape, int step) {
  torch::manual_seed(1000 + 10 * step + context.rank());
  auto pixels = torch::rand(shape);
  return {pixels.to(context.device()),
          torch::randint(10, {shape.front()}, torch::kLong).to(context.device())};
}

template <typename Net>
lockstep::Dict train(const lockstep::Context& context, const std::vector<std::int64_t>& shape,
                     bool find_unused, const auto&... arguments) {
  torch::manual_seed(context.rank());
  Net net(arguments...);
  lockstep::DistributedDataParallel ddp(
      net, {.device = context.device(), .bucket_cap_mb = 0.02, .find_unused_parameters = find_unused});
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  lockstep::List losses;
  for (int step = 0; step < 12; ++step) {
    const auto [pixels, labels] = batch(context, shape, step);
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(ddp->forward(pixels), labels);
    loss.backward();
    optimizer.step();
    losses.items.emplace_back(loss.detach().clone());
  }
  return {{"losses", losses}, {"state", lockstep::state_dict(net)}};
}

// What must be refused before anything is sent.
lockstep::List refusals(const lockstep::Context& context) {
  lockstep::List texts;
  const auto refused = [&](const auto& action) {
    try {
      action();
      texts.items.emplace_back("nothing was refused");
    } catch (const lockstep::ArgumentError& error) {
      texts.items.emplace_back(error.what());
    }
  };
  refused([&] { context.group().all_gather_object("text"); });
  refused([&] { lockstep::SyncBatchNorm(4)->forward(torch::rand({8, 4, 2, 2})); });
  refused([&] { lockstep::split_group(context.group(), {{0}, {1}}); });
  return texts;
}

}  // namespace

int main(int, char** arguments) {
  const bool with_python = arguments[2] == std::string("with_python");
  const bool other_model = arguments[3] == std::string("other_model");
  try {
    const auto context = lockstep::init({.backend = arguments[1], .with_python = with_python});
    lockstep::Dict results{{"collectives", collectives(context)}};
    const std::vector<std::int64_t> vectors{32, 196};
    results["trained"] = train<Net>(context, vectors, false, other_model ? 11 : 10);
    results["unused"] = train<Net>(context, vectors, true, 10);
    results["mnist"] = train<lockstep::testing::MnistNet>(context, {32, 1, 28, 28}, false);
    if (with_python) results["refusals"] = refusals(context);
    lockstep::save(results, arguments[4]);
  } catch (const std::exception& error) {
    lockstep::save(lockstep::Dict{{"error", error.what()}}, arguments[4]);
    return 1;
  }
}
