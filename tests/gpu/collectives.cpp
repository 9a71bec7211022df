// SPDX-License-Identifier: BSD-3-Clause
#include "gpu/collectives.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "gpu/check.h"

namespace lockstep::gpu {
namespace {

at::Tensor values(int rank, at::ScalarType type, const c10::Device& device) {
  return (torch::arange(1000, at::kLong).remainder(5) + rank + 1).to(type).to(device);
}

}  // namespace

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

}  // namespace lockstep::gpu
