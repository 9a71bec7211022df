// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/cuda/Sleep.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "gpu/check.h"

namespace lockstep::gpu {
namespace {

using namespace std::chrono_literals;

const auto kOnGpu = torch::TensorOptions().device(torch::kCUDA);

at::Tensor values(int rank, at::ScalarType type, const c10::Device& device) {
  return (torch::arange(1000, at::kLong).remainder(5) + rank + 1).to(type).to(device);
}

// Every collective, checked against what it means. Small whole numbers are exact in every type.
void check_collectives(const ProcessGroup& group, const c10::Device& device) {
  const int size = group.size();
  for (const auto type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
    const auto own = values(group.rank(), type, device);
    auto sum = torch::zeros_like(own);
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size; ++rank) {
      all.push_back(values(rank, type, device));
      sum += all.back();
    }
    const auto name = fmt::format("{} on {}", c10::toString(type), device.str());
    auto x = own.clone();
    group.all_reduce(x);
    require(torch::equal(x, sum), "all_reduce of " + name);
    x = own.clone();
    group.broadcast(x, size - 1);
    require(torch::equal(x, all.back()), "broadcast of " + name);
    x = own.clone();
    group.reduce(x, 0);
    require(group.rank() != 0 || torch::equal(x, sum), "reduce of " + name);
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < size; ++rank) parts.push_back(torch::zeros_like(own));
    group.all_gather(parts, own);
    require(torch::equal(torch::cat(parts), torch::cat(all)), "all_gather of " + name);
    auto whole = torch::zeros({size * own.numel()}, own.options());
    group.all_gather_into_tensor(whole, own);
    require(torch::equal(whole, torch::cat(all)), "all_gather_into_tensor of " + name);
    auto part = torch::zeros_like(own);
    group.reduce_scatter_tensor(part, own.repeat({size}));
    require(torch::equal(part, sum), "reduce_scatter_tensor of " + name);
    group.all_to_all_single(whole, own.repeat({size}));
    require(torch::equal(whole, torch::cat(all)), "all_to_all_single of " + name);
    group.scatter(part, group.rank() == 0 ? all : std::vector<at::Tensor>{}, 0);
    require(torch::equal(part, own), "scatter of " + name);
    group.gather(own, group.rank() == 0 ? parts : std::vector<at::Tensor>{}, 0);
    require(group.rank() != 0 || torch::equal(torch::cat(parts), torch::cat(all)), "gather of " + name);
  }
  if (size < 2) return;
  auto token = torch::full({3}, group.rank(), torch::TensorOptions().device(device));
  if (group.rank() == 0) group.send(token, 1, 7);
  if (group.rank() == 1) group.recv(token, 0, 7);
  require(group.rank() > 1 || token.sum().item<float>() == 0, "send and recv");
}

void check_objects(const ProcessGroup& group) {
  const auto all = group.all_gather_object(fmt::format("rank {}", group.rank()));
  require(all.front() == "rank 0" && static_cast<int>(all.size()) == group.size(), "all_gather_object");
  group.barrier();
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
  check_collectives(*group, context.device());
}

// A device that does not come back is told within the timeout, at the next call and by synchronize().
void hang_is_told() {
  const auto context = init({.timeout = 2s});
  context.group().all_reduce(torch::ones({3}, kOnGpu));
  context.synchronize();
  at::cuda::sleep(20'000'000'000);  // ten seconds of a GPU at 2 GHz
  const auto work = context.group().all_reduce_async(torch::ones({3}, kOnGpu));
  require_error(
      [&] {
        for (int i = 0; i < 300; ++i) {
          context.group().all_reduce_async(torch::ones({3}));
          std::this_thread::sleep_for(10ms);
        }
      },
      "has not ended on the device after 2000 ms");
}

void shared(const std::string& backend) {
  const auto context = init({.backend = backend, .share_devices = true});
  require(context.group().backend_name().starts_with("cpu:"), "tensors go by way of the host");
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
      {"nccl", 1, "every collective over nccl, objects, errors", nccl_alone},
      {"auto", 1, "nccl and the CPU's backend in one group, options, a subgroup", nccl_beside_cpu},
      {"hang", 1, "a call that does not end on the GPU is a TimeoutError", hang_is_told},
      {"shared_shm", 2, "two ranks on one GPU by way of shm", [] { shared("shm"); }},
      {"shared_gloo", 2, "two ranks on one GPU by way of gloo", [] { shared("gloo"); }},
      {"shared_auto", 2, "two ranks on one GPU, backend auto", [] { shared("auto"); }},
      {"sharing_refused", 2, "two ranks on one GPU are refused unless they share", sharing_is_refused},
      {"nccl_sharing_refused", 2, "nccl cannot connect them, and says so", nccl_refuses_sharing},
  };
}

}  // namespace lockstep::gpu
