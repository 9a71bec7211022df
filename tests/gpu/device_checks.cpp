// SPDX-License-Identifier: BSD-3-Clause
#include <iostream>
#include <numeric>

#include <ATen/cuda/Sleep.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"
#include "gpu/collectives.h"

namespace lockstep::gpu {
namespace {

using namespace std::chrono_literals;

const auto kOnGpu = torch::TensorOptions().device(torch::kCUDA);

void libtorch_sees_it() {
  const c10::Device gpu(c10::kCUDA, 0);
  require(device_count(c10::kCUDA) > 0, "LibTorch sees a GPU");
  std::cout << device_identity(gpu) << std::endl;
  const auto ones = torch::ones({1024, 1024}, kOnGpu.dtype(at::kBFloat16));
  require((ones.matmul(ones) == 1024).all().item<bool>(), "a product of matrices in bf16");
  synchronize(gpu);
}

void nccl_alone() {
  const auto context = init({.backend = "nccl"});
  require(context.device() == c10::Device(c10::kCUDA, 0), "the device is cuda:0");
  require(context.group().backend_name() == "nccl", "the backend is nccl");
  check_collectives(context.group(), context.device());
  check_objects(context.group());
  require_error([&] { context.group().all_reduce(torch::ones({3})); }, "which backend nccl does not carry");
  context.synchronize();
}

void nccl_beside_cpu() {
  const auto context = init({.nccl = {.high_priority_stream = true, .max_ctas = 8}});
  require(context.group().backend_name() == "cpu:shm,cuda:nccl",
          "auto is nccl and shm: " + context.group().backend_name());
  check_collectives(context.group(), context.device());
  check_collectives(context.group(), c10::kCPU);
  check_objects(context.group());
  const auto group = context.new_group({0});
  check_collectives(group, context.device());
}

void nccl_options() {
  const std::vector<NcclOptions> all{
      {.blocking_wait = true}, {.nonblocking = true}, {.min_ctas = 1, .max_ctas = 4}};
  const auto context = init({.backend = "nccl"});
  std::vector<int> ranks(static_cast<std::size_t>(context.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (const auto& options : all) {
    const auto group = context.new_group(ranks, {.nccl = options});
    check_collectives(group, context.device());
  }
  context.synchronize();
}

// A hanging device is reported within the timeout, by the next call and by synchronize().
void hang_is_reported() {
  const auto context = init();
  const auto group = context.new_group({0}, {.timeout = 5s});
  group.all_reduce(torch::ones({3}, kOnGpu));
  context.synchronize();
  at::cuda::sleep(30'000'000'000);  // fifteen seconds of a GPU at 2 GHz
  const auto work = group.all_reduce_async(torch::ones({3}, kOnGpu));
  require_error(
      [&] {
        for (int i = 0; i < 1000; ++i) {
          group.all_reduce_async(torch::ones({3}));
          std::this_thread::sleep_for(10ms);
        }
      },
      "has not ended on the device after 5000 ms");
}

void shared(const std::string& backend) {
  const auto context = init({.backend = backend, .share_devices = true});
  require(context.group().backend_name().starts_with("cpu:"), "tensors go through the host");
  require(context.device() == c10::Device(c10::kCUDA, 0), "both ranks have cuda:0");
  check_collectives(context.group(), context.device());
  check_collectives(context.group(), c10::kCPU);
  check_objects(context.group());
}

void sharing_is_refused() {
  require_error([] { const auto context = init(); }, "share_devices");
}

void nccl_refuses_sharing() {
  require_error([] { const auto context = init({.backend = "nccl", .share_devices = true}); },
                "cannot connect ranks that share a GPU");
}

}  // namespace

std::vector<Check> device_checks() {
  return {
      {"devices", 1, "LibTorch sees the GPU, and a product of matrices in bf16 is right", libtorch_sees_it},
      {"nccl", 1, "every collective over nccl, objects, errors", nccl_alone},
      {"auto", 1, "nccl and a CPU backend in one group, options, a subgroup", nccl_beside_cpu},
      {"nccl_options", 1, "collectives with NCCL's options", nccl_options},
      {"two_nccl_options", 2, "the same between two GPUs", nccl_options, 2},
      {"hang", 1, "a call that does not end on the GPU is a TimeoutError", hang_is_reported},
      {"shared_shm", 2, "two ranks on one GPU through shm", [] { shared("shm"); }},
      {"shared_gloo", 2, "two ranks on one GPU through gloo", [] { shared("gloo"); }},
      {"shared_auto", 2, "two ranks on one GPU, backend auto", [] { shared("auto"); }},
      {"sharing_refused", 2, "two ranks on one GPU are rejected unless they share", sharing_is_refused},
      {"nccl_sharing_refused", 2, "nccl reports that it cannot connect them", nccl_refuses_sharing},
  };
}

}  // namespace lockstep::gpu
