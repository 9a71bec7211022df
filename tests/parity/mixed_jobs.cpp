// SPDX-License-Identifier: BSD-3-Clause
// One C++ rank of a job whose other ranks may be Python's; mixed_jobs.py starts it and has the same steps:
// mixed_jobs <backend> <alone|with_python> <train|other_model|collectives> <file of the results>
#include <numeric>
#include <string>

#include <lockstep/lockstep.h>

#include "parity/models/mnist_nets.h"

namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int classes)
      : fc1(register_module("fc1", torch::nn::Linear(196, 64))),
        norm(register_module("norm", torch::nn::BatchNorm1d(64))),
        extra(register_module("extra", torch::nn::Linear(64, 64))),
        fc2(register_module("fc2", torch::nn::Linear(64, classes))) {}

  torch::Tensor forward(const torch::Tensor& input) {
    const auto x = torch::relu(norm->forward(fc1->forward(input)));
    return fc2->forward(uses_extra ? torch::relu(extra->forward(x)) : x);
  }

  torch::nn::Linear fc1;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear extra;
  torch::nn::Linear fc2;
  bool uses_extra = true;
};
TORCH_MODULE(Net);

using Tensors = std::vector<torch::Tensor>;

lockstep::List collectives(const lockstep::Context& context, bool with_python) {
  const auto& group = context.group();
  const int rank = context.rank();
  const int ranks = group.size();
  const auto own = (torch::arange(12, torch::kFloat) + 10.0 * rank).to(context.device());
  const auto of_all = [&] {
    Tensors tensors;
    for (int i = 0; i < ranks; ++i) tensors.push_back(torch::zeros_like(own));
    return tensors;
  };
  auto sum = own.clone();
  group.all_reduce(sum);
  auto most = own.clone();
  group.all_reduce(most, lockstep::ReduceOp::MAX);
  auto count = own.to(torch::kLong);
  group.all_reduce_async(count, lockstep::ReduceOp::PRODUCT).wait();
  auto reduced = own.to(torch::kBFloat16);
  group.reduce(reduced, 0);
  auto first = own.clone();
  group.broadcast(first, 0);
  const auto all = of_all();
  group.all_gather(all, own);
  auto joined = torch::empty({12 * ranks}, own.options());
  group.all_gather_into_tensor(joined, own);
  const auto gathered = of_all();
  group.gather(own, rank == 1 ? gathered : Tensors(), 1);
  auto scattered = torch::empty_like(own);
  Tensors inputs;
  for (int i = 0; i < ranks && rank == 1; ++i) inputs.push_back(own + i);
  group.scatter(scattered, inputs, 1);
  auto part = torch::empty({12 / ranks}, own.options());
  group.reduce_scatter_tensor(part, own);
  auto listed = torch::empty_like(part);
  group.reduce_scatter(listed, own.chunk(ranks));
  auto swapped = torch::empty_like(own);
  group.all_to_all_single(swapped, own);
  auto received = torch::empty_like(own);
  const int peer = rank ^ 1;
  if (rank < peer) {
    group.send(own, peer);
    group.recv(received, peer);
  } else {
    group.recv(received, peer);
    group.send(own, peer);
  }
  group.barrier();
  auto sub = own.clone();
  if (const auto ends = context.new_group({0, ranks - 1})) ends.all_reduce(sub);
  const auto others = Tensors{torch::zeros_like(own), torch::zeros_like(own)};
  // PyTorch sorts the ranks of a group, and so do runs with Python ranks.
  const auto turned = with_python ? std::vector{ranks - 1, 0} : std::vector{0, ranks - 1};
  if (const auto ends = context.new_group(turned)) ends.all_gather(others, own);
  auto on_host = own.cpu();
  std::vector<int> all_ranks(static_cast<std::size_t>(ranks));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  context.new_group(all_ranks, {.backend = "gloo"}).all_reduce(on_host);
  lockstep::List results{sum, most, count, rank == 0 ? reduced : own, first};
  results.items.insert(results.items.end(), all.begin(), all.end());
  results.items.emplace_back(joined);
  results.items.insert(results.items.end(), gathered.begin(), gathered.end());
  for (const auto& tensor : {scattered, part, listed, swapped, received, sub, others[0], others[1], on_host})
    results.items.emplace_back(tensor);
  return results;
}

std::pair<torch::Tensor, torch::Tensor> batch(const lockstep::Context& context,
                                              const std::vector<std::int64_t>& shape, int number) {
  torch::manual_seed(1000 + 10 * number + context.rank());
  auto pixels = torch::rand(shape);
  return {pixels.to(context.device()),
          torch::randint(10, {shape.front()}, torch::kLong).to(context.device())};
}

std::string refusal_of(const auto& action) {
  try {
    action();
    return "nothing was refused";
  } catch (const lockstep::ArgumentError& error) {
    return error.what();
  }
}

template <typename Net>
lockstep::Dict train(const lockstep::Context& context, const std::string& name, Net net,
                     const std::vector<std::int64_t>& shape, const auto&... use_ddp) {
  lockstep::DistributedDataParallel ddp(net, {.device_ids = {context.device()},
                                              .bucket_cap_mb = 0.02,
                                              .find_unused_parameters = name == "unused",
                                              .static_graph = name == "static"});
  if (name == "compressed") ddp->register_comm_hook(lockstep::bf16_compress_hook);
  torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const int parts = name == "accumulated" ? 3 : 1;
  lockstep::List losses;
  for (int step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    if constexpr (requires { net->uses_extra; })
      net->uses_extra = name != "static" && !(name == "unused" && (step + context.rank()) % 3 != 0);
    torch::Tensor loss;
    for (int part = 0; part < parts; ++part) {
      std::optional<lockstep::NoSync> local;
      if (part + 1 < parts) local.emplace(ddp->no_sync());
      const auto [pixels, labels] = batch(context, shape, parts * step + part);
      loss = torch::nn::functional::cross_entropy(ddp->forward(pixels), labels);
      loss.backward();
    }
    optimizer.step();
    losses.items.emplace_back(loss.detach().clone());
  }
  (use_ddp(ddp), ...);
  return {{"losses", losses}, {"state", lockstep::state_dict(net)}};
}

// What must be refused before anything is sent; all ranks made `ddp`.
lockstep::List refusals(const lockstep::Context& context, auto& ddp) {
  using lockstep::DistributedDataParallel;
  torch::nn::Linear net(4, 2);
  const torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  const auto make_optimizer = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  };
  lockstep::List texts;
  const auto refused = [&](const auto& action) { texts.items.emplace_back(refusal_of(action)); };
  refused([&] { context.group().all_gather_object("text"); });
  for (const auto* name : {"auto", "mpi", "cpu:gloo"})
    refused([&] { static_cast<void>(context.new_group({0}, {.backend = name})); });
  refused([&] { lockstep::split_group(context.group(), {{0}, {1}}); });
  refused([&] { lockstep::between_hosts(lockstep::allreduce_hook); });
  refused([&] { lockstep::SyncBatchNorm(4)->forward(torch::rand({8, 4, 2, 2})); });
  refused([&] { lockstep::fully_shard(net); });
  refused([&] { lockstep::ZeroRedundancyOptimizer<torch::optim::SGD>(net->parameters(), 0.1); });
  refused([&] { lockstep::trace(ddp, "trace.json"); });
  refused([&] { static_cast<void>(ddp->join()); });
  refused([&] { DistributedDataParallel{sparse}; });
  const std::vector<lockstep::DistributedDataParallelOptions> options{
      {.delay_all_reduce_named_params = {"bias"}, .param_to_hook_all_reduce = "weight"},
      {.find_unused_parameters = true, .skip_all_reduce_unused_params = true},
      {.mixed_precision = lockstep::MixedPrecision{.param_dtype = torch::kHalf}},
      {.optimizer_in_backward = make_optimizer}};
  for (const auto& each : options) refused([&] { DistributedDataParallel(net, each); });
  return texts;
}

}  // namespace

int main(int, char** arguments) {
  const bool with_python = arguments[2] == std::string("with_python");
  const bool other_model = arguments[3] == std::string("other_model");
  try {
    const auto context = lockstep::init({.backend = arguments[1], .with_python = with_python});
    lockstep::Dict results{{"collectives", collectives(context, with_python)}};
    if (arguments[3] == std::string("collectives")) {
      lockstep::save(results, arguments[4]);
      return 0;
    }
    for (const std::string name : {"averaged", "unused", "static", "accumulated", "compressed"}) {
      torch::manual_seed(context.rank());
      results[name] = train(context, name, Net(other_model ? 11 : 10), {32, 196});
    }
    torch::manual_seed(context.rank());
    results["mnist"] =
        train(context, "mnist", lockstep::testing::MnistNet(), {32, 1, 28, 28}, [&](auto& ddp) {
          if (with_python) results["refusals"] = refusals(context, ddp);
        });
    lockstep::save(results, arguments[4]);
  } catch (const std::exception& error) {
    lockstep::save(lockstep::Dict{{"error", error.what()}}, arguments[4]);
    return 1;
  }
}
