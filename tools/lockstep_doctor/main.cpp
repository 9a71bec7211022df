// SPDX-License-Identifier: BSD-3-Clause
// The checks of `lockstep doctor` that need LibTorch, which `lockstep` does not link:
//   lockstep-doctor describe             this LibTorch and the backends that are built, as JSON
//   lockstep-doctor all-reduce BACKEND   as a rank: one all_reduce, whose result is checked
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include <lockstep/rendezvous/init.h>

#include "backends/registry.h"
#include "base/limits.h"
#include "base/throw_error.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::seconds kTimeout{60};
constexpr int kUsageError = 2;

std::string cuda_version() {
  if (!at::detail::getCUDAHooks().hasCUDART()) return "";
  const auto number = at::detail::getCUDAHooks().versionCUDART();
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

int describe() {
  const nlohmann::json document{{"libtorch", TORCH_VERSION},
                                {"cpu_capability", at::get_cpu_capability()},
                                {"cuda", cuda_version()},
                                {"cuda_devices", at::detail::getCUDAHooks().getNumGPUs()},
                                {"backends", backends::available_backends()}};
  std::cout << document.dump() << '\n';
  return 0;
}

int all_reduce(const std::string& backend) {
  const auto context = init({.backend = backend, .timeout = kTimeout, .device = c10::Device(c10::kCPU)});
  const auto tensor = at::full({1024}, context.rank() + 1, at::kFloat);
  context.group().all_reduce(tensor);
  const int ranks = context.world_size();
  const auto expected = static_cast<float>(ranks * (ranks + 1) / 2);
  if (tensor.eq(expected).all().item<bool>()) return 0;
  throw_error<Error>("all_reduce of 1 .. {} gave {}, not {}", ranks, tensor[0].item<float>(), expected);
}

int run(const std::vector<std::string>& words) {
  if (words == std::vector<std::string>{"describe"}) return describe();
  if (words.size() == 2 && words[0] == "all-reduce") return all_reduce(words[1]);
  std::cerr << "usage: lockstep-doctor describe | all-reduce BACKEND (lockstep doctor runs both)\n";
  return kUsageError;
}

}  // namespace
}  // namespace lockstep::doctor

int main(int argc, char** argv) {
  try {
    return lockstep::doctor::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "lockstep-doctor: " << lockstep::exception_text(error) << '\n';
    return 1;
  }
}
