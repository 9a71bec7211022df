// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/plan.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "backends/shm/layout.h"
#include "backends/shm/stream.h"

namespace lockstep::shm {
namespace {

Source as_source(const Target& target) { return {target.data, target.bytes}; }

void clear(Plan& plan) {
  plan.portions = 1;
  plan.stage.clear();
  plan.take.clear();
  plan.kernel = nullptr;
  plan.width = 1;
  plan.own = {};
  plan.result = {};
  plan.share_result = false;
}

void add_reduction(Plan& plan, const Request& request) {
  plan.kernel = reduce_kernel(request.element, request.reduction);
  plan.width = size_of(request.element);
}

// Every rank's portion and targets, for calls without a reduction.
void plan_copying(const Request& request, int rank, int size, Plan& plan) {
  const bool is_root = rank == request.root;
  switch (request.kind) {
    case Kind::broadcast:
      if (is_root) {
        plan.stage.push_back(as_source(request.outputs.front()));
      } else {
        plan.take.resize(static_cast<std::size_t>(size));
        plan.take[static_cast<std::size_t>(request.root)] = request.outputs.front();
      }
      break;
    case Kind::all_gather:
      plan.stage = request.inputs;
      plan.take = request.outputs;
      plan.own = request.inputs.front();
      break;
    case Kind::gather:
      if (!is_root) plan.stage = request.inputs;
      plan.take = request.outputs;
      plan.own = request.inputs.front();
      break;
    case Kind::scatter:
      plan.portions = static_cast<std::size_t>(size);
      plan.stage = request.inputs;
      plan.take.resize(static_cast<std::size_t>(size));
      plan.take[static_cast<std::size_t>(request.root)] = request.outputs.front();
      if (is_root) plan.own = request.inputs[static_cast<std::size_t>(rank)];
      break;
    case Kind::all_to_all:
      plan.portions = static_cast<std::size_t>(size);
      plan.stage = request.inputs;
      plan.take = request.outputs;
      plan.own = request.inputs[static_cast<std::size_t>(rank)];
      break;
    default:
      break;
  }
}

void plan_reduce_scatter(const Request& request, int rank, int size, Plan& plan) {
  add_reduction(plan, request);
  plan.portions = static_cast<std::size_t>(size);
  plan.stage = request.inputs;
  plan.own = request.inputs[static_cast<std::size_t>(rank)];
  plan.result = request.outputs.front();
}

// False if whole tensors are reduced.
bool plan_by_kind(const Request& request, int rank, int size, Plan& plan) {
  if (request.kind == Kind::reduce_scatter) {
    plan_reduce_scatter(request, rank, size, plan);
    return true;
  }
  if (has_reduction(request.kind)) return false;
  plan_copying(request, rank, size, plan);
  return true;
}

bool wants_result(const Request& request, int rank) {
  return request.kind == Kind::all_reduce || rank == request.root;
}

}  // namespace

std::size_t share_start(std::size_t bytes, int shares, int index) {
  if (index == shares) return bytes;
  return bytes / kLine * static_cast<std::size_t>(index) / static_cast<std::size_t>(shares) * kLine;
}

void plan_small(const Request& request, int rank, int size, Plan& plan) {
  clear(plan);
  if (plan_by_kind(request, rank, size, plan)) return;
  plan.stage.push_back(as_source(request.outputs.front()));
  plan.own = plan.stage.front();
  if (!wants_result(request, rank)) return;
  add_reduction(plan, request);
  plan.result = request.outputs.front();
}

Plan chunked_plan(const Request& request, int rank, int size) {
  Plan plan;
  if (plan_by_kind(request, rank, size, plan)) return plan;
  add_reduction(plan, request);
  plan.portions = static_cast<std::size_t>(size);
  plan.share_result = true;
  const auto& tensor = request.outputs.front();
  const bool wanted = wants_result(request, rank);
  for (int portion = 0; portion < size; ++portion) {
    const auto start = share_start(tensor.bytes, size, portion);
    const Target part{tensor.data + start, share_start(tensor.bytes, size, portion + 1) - start};
    plan.stage.push_back(as_source(part));
    if (wanted) plan.take.push_back(part);
  }
  const auto own = static_cast<std::size_t>(rank);
  plan.own = plan.stage[own];
  if (wanted) plan.result = plan.take[own];
  return plan;
}

std::size_t table_bytes(Kind kind, int size) {
  return is_uneven(kind) ? 2 * static_cast<std::size_t>(size) * sizeof(std::uint64_t) : 0;
}

bool overlap(const Target& a, const Source& b) {
  const std::less<> before;
  return a.bytes > 0 && b.bytes > 0 && before(a.data, b.data + b.bytes) && before(b.data, a.data + a.bytes);
}

void take_own(const Plan& plan, int rank) {
  if (plan.take.empty() || plan.kernel != nullptr) return;
  const auto& to = plan.take[static_cast<std::size_t>(rank)];
  if (to.bytes == 0 || to.data == plan.own.data) return;
  if (overlap(to, plan.own)) {
    std::memmove(to.data, plan.own.data, plan.own.bytes);
  } else {
    copy_part(to.data, plan.own.data, plan.own.bytes, plan.own.bytes);
  }
}

std::uint64_t staged_bytes(const Plan& plan) {
  std::uint64_t sum = 0;
  for (const auto& portion : plan.stage) sum += portion.bytes;
  return sum;
}

std::uint64_t longest_portion(const Plan& plan) {
  std::uint64_t longest = 0;
  for (const auto& portion : plan.stage) longest = std::max<std::uint64_t>(longest, portion.bytes);
  return longest;
}

}  // namespace lockstep::shm
