// SPDX-License-Identifier: BSD-3-Clause
// One process, several devices: DataParallel, and weights that are saved from it and loaded without it, and
// the other way round.
//
//   build/release/bin/data_parallel
#include <filesystem>
#include <iostream>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(5, 2)); }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto output = fc->forward(input);
    std::cout << "\tin the module: input " << input.sizes() << ", output " << output.sizes() << '\n';
    return output;
  }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

int main() try {
  const bool has_gpus = torch::cuda::is_available();
  Net net;
  if (has_gpus) net->to(torch::kCUDA);
  // All GPUs, or two replicas on the CPU.
  DataParallel parallel(
      net, has_gpus ? DataParallelOptions{} : DataParallelOptions{.device_ids = {torch::kCPU, torch::kCPU}});
  std::cout << parallel << '\n';

  torch::optim::SGD optimizer(parallel->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto input = torch::randn({30, 5}, parallel->output_device());
    optimizer.zero_grad();
    const auto output = parallel->forward(input);
    std::cout << "outside: input " << input.sizes() << ", output " << output.sizes() << '\n';
    output.square().mean().backward();
    optimizer.step();
  }

  const auto folder = std::filesystem::temp_directory_path() / fmt::format("data_parallel.{}", ::getpid());
  std::filesystem::create_directory(folder);
  save(state_dict(parallel), folder / "parallel.pt");  // "module.fc.weight"
  save(state_dict(net), folder / "plain.pt");          // "fc.weight"
  Net plain;
  const auto from_parallel = load_pretrained(plain, folder / "parallel.pt");
  DataParallel other(Net(), {.device_ids = {torch::kCPU, torch::kCPU}});
  const auto from_plain = load_pretrained(other, folder / "plain.pt");
  std::filesystem::remove_all(folder);
  const auto report = [&](const LoadReport& loaded, const torch::Tensor& weight) {
    std::cout << "\"module.\" was "
              << (loaded.prefix == PrefixChange::removed ? "removed"
                  : loaded.prefix == PrefixChange::added ? "added"
                                                         : "kept")
              << " on loading; the weights are "
              << (torch::equal(weight, net->fc->weight.cpu()) ? "equal" : "not equal") << '\n';
  };
  report(from_parallel, plain->fc->weight);
  report(from_plain, other->module()->fc->weight);
} catch (const std::exception& error) {
  std::cerr << "data_parallel: " << error.what() << '\n';
  return 1;
}
