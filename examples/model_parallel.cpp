// SPDX-License-Identifier: BSD-3-Clause
// One net cut over two devices beside the same net copied to both: model parallel and data parallel in one
// process, timed. Without two GPUs both devices are the CPU.
//
//   build/release/bin/model_parallel
#include <chrono>
#include <iostream>

#include <fmt/format.h>

#include <lockstep/lockstep.h>

using namespace lockstep;
using torch::nn::Linear;

constexpr std::int64_t kWidth = 512, kSamples = 256;
constexpr int kLayers = 8, kSteps = 20;

// Knows nothing of devices.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < kLayers; ++i) layers->push_back(Linear(kWidth, kWidth));
    head = register_module("head", Linear(kWidth, 10));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = x + torch::relu(layer->as<Linear>()->forward(x));
    return head(x);
  }
  torch::nn::ModuleList layers{nullptr};
  Linear head{nullptr};
};
TORCH_MODULE(Net);

// Seconds per step. `forward` returns the logits of the samples.
template <class Forward>
double train(const Net& net, const Forward& forward) {
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  torch::manual_seed(1);
  const auto x = torch::randn({kSamples, kWidth}), target = torch::randint(10, {kSamples});
  std::chrono::steady_clock::time_point start;
  double loss = 0;
  for (int step = -3; step < kSteps; ++step) {  // three steps to warm up
    if (step == 0) start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const at::Tensor logits = forward(x);
    const auto cost = torch::nn::functional::cross_entropy(logits, target.to(logits.device()));
    cost.backward();
    optimizer.step();
    loss = cost.item<double>();  // waits for the device
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << fmt::format("loss {:.4f}, {:.2f} ms per step\n", loss, 1e3 * seconds.count() / kSteps);
  return seconds.count() / kSteps;
}

Net make_net() {
  torch::manual_seed(0);
  return {};
}

int main() {
  try {
    const bool has_gpus = torch::cuda::device_count() >= 2;
    const auto first = has_gpus ? DeviceId(0) : DeviceId(at::kCPU), second = has_gpus ? DeviceId(1) : first;
    std::cout << (has_gpus ? "devices: cuda:0 and cuda:1\n"
                           : "fewer than two GPUs: both devices are the CPU\n");

    Net whole = make_net();
    whole->to(first);
    std::cout << "one device:     ";
    const auto one =
        train(whole, [&](const at::Tensor& x) { return whole->forward(x.to(c10::Device(first))); });

    Net cut = make_net();
    const ModelParallel parts(cut, {{"", first}, {"layers.[4567]", second}, {"head", second}});
    std::cout << "model parallel: ";
    const auto model_parallel = train(cut, [&](const at::Tensor& x) {
      const auto scope = parts.follow();
      return cut->forward(x);
    });

    Net copied = make_net();
    copied->to(first);
    DataParallel replicas(copied, {.device_ids = {first, second}});
    std::cout << "data parallel:  ";
    const auto data_parallel = train(copied, [&](const at::Tensor& x) { return replicas->forward(x); });

    std::cout << fmt::format("times of one device: model parallel {:.2f}, data parallel {:.2f}\n",
                             model_parallel / one, data_parallel / one);
  } catch (const std::exception& error) {
    std::cerr << "model_parallel: " << error.what() << std::endl;
    return 1;
  }
}
