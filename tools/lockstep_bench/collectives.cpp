// SPDX-License-Identifier: BSD-3-Clause
#include "collectives.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>

namespace lockstep::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

// Small whole numbers, so that every sum is exact in every type.
at::Tensor pattern(int rank, std::int64_t count, c10::ScalarType dtype) {
  return torch::arange(count, at::kLong).remainder(5).add(rank + 1).to(dtype);
}

at::Tensor allocate(const TrialRequest& request, std::int64_t count) {
  const auto options = at::TensorOptions().dtype(request.dtype);
  return request.inplace ? request.group.backend()->allocateTensor(count, options)
                         : torch::empty({count}, options);
}

at::Tensor reduced(const TrialRequest& request, std::int64_t count) {
  Tensors all;
  for (int rank = 0; rank < request.group.size(); ++rank) all.push_back(pattern(rank, count, at::kDouble));
  const auto stack = torch::stack(all);
  switch (request.op) {
    case ReduceOp::AVG:
      return stack.mean(0).to(request.dtype);
    case ReduceOp::MIN:
      return stack.amin(0).to(request.dtype);
    case ReduceOp::MAX:
      return stack.amax(0).to(request.dtype);
    default:
      return stack.sum(0).to(request.dtype);
  }
}

std::int64_t differing(const at::Tensor& actual, const at::Tensor& expected) {
  return actual.ne(expected).sum().item<std::int64_t>();
}

Trial all_reduce(const TrialRequest& r) {
  const auto tensor = allocate(r, r.count);
  const auto input = pattern(r.group.rank(), r.count, r.dtype);
  return {.rewrite = [=] { tensor.copy_(input); },
          .run = [=] { r.group.all_reduce(tensor, r.op); },
          .wrong = [=] { return differing(tensor, reduced(r, r.count)); }};
}

Trial reduce(const TrialRequest& r) {
  const auto tensor = allocate(r, r.count);
  const auto input = pattern(r.group.rank(), r.count, r.dtype);
  return {.rewrite = [=] { tensor.copy_(input); },
          .run = [=] { r.group.reduce(tensor, 0, r.op); },
          .wrong = [=] { return r.group.rank() == 0 ? differing(tensor, reduced(r, r.count)) : 0; }};
}

Trial broadcast(const TrialRequest& r) {
  const auto tensor = allocate(r, r.count);
  const auto input = pattern(r.group.rank(), r.count, r.dtype);
  return {.rewrite = [=] { tensor.copy_(input); },
          .run = [=] { r.group.broadcast(tensor, 0); },
          .wrong = [=] { return differing(tensor, pattern(0, r.count, r.dtype)); }};
}

Trial all_gather(const TrialRequest& r) {
  const auto part = r.count / r.group.size();
  const auto input = allocate(r, part);
  const auto output = allocate(r, part * r.group.size());
  const auto values = pattern(r.group.rank(), part, r.dtype);
  return {.rewrite = [=] { input.copy_(values); },
          .run = [=] { r.group.all_gather_into_tensor(output, input); },
          .wrong =
              [=] {
                Tensors all;
                for (int rank = 0; rank < r.group.size(); ++rank) all.push_back(pattern(rank, part, r.dtype));
                return differing(output, torch::cat(all));
              }};
}

Trial reduce_scatter(const TrialRequest& r) {
  const auto part = r.count / r.group.size();
  const auto input = allocate(r, part * r.group.size());
  const auto output = allocate(r, part);
  const auto values = pattern(r.group.rank(), part * r.group.size(), r.dtype);
  return {.rewrite = [=] { input.copy_(values); },
          .run = [=] { r.group.reduce_scatter_tensor(output, input, r.op); },
          .wrong =
              [=] {
                const auto all = reduced(r, part * r.group.size());
                return differing(output, all.narrow(0, r.group.rank() * part, part));
              }};
}

Trial all_to_all(const TrialRequest& r) {
  const auto part = r.count / r.group.size();
  const auto input = allocate(r, part * r.group.size());
  const auto output = allocate(r, part * r.group.size());
  const auto values = pattern(r.group.rank(), part * r.group.size(), r.dtype);
  return {.rewrite = [=] { input.copy_(values); },
          .run = [=] { r.group.all_to_all_single(output, input); },
          .wrong =
              [=] {
                Tensors all;
                for (int rank = 0; rank < r.group.size(); ++rank) {
                  all.push_back(
                      pattern(rank, part * r.group.size(), r.dtype).narrow(0, r.group.rank() * part, part));
                }
                return differing(output, torch::cat(all));
              }};
}

Trial gather(const TrialRequest& r) {
  const auto part = r.count / r.group.size();
  const auto input = allocate(r, part);
  const auto values = pattern(r.group.rank(), part, r.dtype);
  Tensors outputs;
  for (int rank = 0; r.group.rank() == 0 && rank < r.group.size(); ++rank)
    outputs.push_back(allocate(r, part));
  return {.rewrite = [=] { input.copy_(values); },
          .run = [=] { r.group.gather(input, outputs, 0); },
          .wrong =
              [=] {
                std::int64_t wrong = 0;
                for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
                  wrong += differing(outputs[rank], pattern(static_cast<int>(rank), part, r.dtype));
                }
                return wrong;
              }};
}

Trial scatter(const TrialRequest& r) {
  const auto part = r.count / r.group.size();
  const auto output = allocate(r, part);
  Tensors inputs;
  Tensors values;
  for (int rank = 0; r.group.rank() == 0 && rank < r.group.size(); ++rank) {
    inputs.push_back(allocate(r, part));
    values.push_back(pattern(rank, part, r.dtype));
  }
  return {.rewrite =
              [=] {
                for (std::size_t rank = 0; rank < inputs.size(); ++rank) inputs[rank].copy_(values[rank]);
              },
          .run = [=] { r.group.scatter(output, inputs, 0); },
          .wrong = [=] { return differing(output, pattern(r.group.rank(), part, r.dtype)); }};
}

Trial send_recv(const TrialRequest& r) {
  const int size = r.group.size();
  const int next = (r.group.rank() + 1) % size;
  const int before = (r.group.rank() + size - 1) % size;
  const auto input = allocate(r, r.count);
  const auto output = allocate(r, r.count);
  const auto values = pattern(r.group.rank(), r.count, r.dtype);
  return {.rewrite = [=] { input.copy_(values); },
          .run =
              [=] {
                auto sent = r.group.send_async(input, next);
                r.group.recv(output, before);
                sent.wait();
              },
          .wrong = [=] { return differing(output, pattern(before, r.count, r.dtype)); }};
}

Trial barrier(const TrialRequest& r) {
  return {.rewrite = [] {}, .run = [=] { r.group.barrier(); }, .wrong = [] { return std::int64_t{0}; }};
}

double whole(int) { return 1; }
double twice(int ranks) { return 2.0 * (ranks - 1) / ranks; }
double once(int ranks) { return 1.0 * (ranks - 1) / ranks; }

const std::vector<Collective>& collectives() {
  static const std::vector<Collective> all{
      {.name = "all-reduce", .reduces = true, .bus_factor = twice, .prepare = all_reduce},
      {.name = "all-gather", .in_parts = true, .bus_factor = once, .prepare = all_gather},
      {.name = "reduce-scatter",
       .reduces = true,
       .in_parts = true,
       .bus_factor = once,
       .prepare = reduce_scatter},
      {.name = "broadcast", .bus_factor = whole, .prepare = broadcast},
      {.name = "reduce", .reduces = true, .bus_factor = whole, .prepare = reduce},
      {.name = "gather", .in_parts = true, .bus_factor = once, .prepare = gather},
      {.name = "scatter", .in_parts = true, .bus_factor = once, .prepare = scatter},
      {.name = "all-to-all", .in_parts = true, .bus_factor = once, .prepare = all_to_all},
      {.name = "send-recv", .bus_factor = whole, .prepare = send_recv},
      {.name = "barrier", .bus_factor = whole, .prepare = barrier},
  };
  return all;
}

}  // namespace

const Collective& find_collective(const std::string& name) {
  const auto found = std::ranges::find(collectives(), name, &Collective::name);
  if (found != collectives().end()) return *found;
  throw ArgumentError(fmt::format("there is no collective \"{}\"; there are {}", name, collective_names()));
}

std::string collective_names() {
  std::string names;
  for (const auto& collective : collectives()) names += (names.empty() ? "" : ", ") + collective.name;
  return names;
}

}  // namespace lockstep::bench
