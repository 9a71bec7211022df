// SPDX-License-Identifier: BSD-3-Clause
#include "collectives.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include "base/fd_passing.h"
#include "base/shared_memory.h"
#include "kinds.h"
#include "rank.h"

namespace lockstep::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor allocate(const TrialRequest& r, std::int64_t count) {
  const auto options = at::TensorOptions().dtype(r.dtype);
  return r.zero_copy ? r.group.backend()->allocateTensor(count, options) : at::empty({count}, options);
}

std::int64_t part(const TrialRequest& r) { return r.count / r.group.size(); }

at::Tensor own_block(const TrialRequest& r) { return pattern_block(r.group.rank(), r.dtype); }

at::Tensor sum_block(const TrialRequest& r, std::int64_t offset = 0) {
  return reduced_block(r.group.size(), r.op, r.dtype, offset);
}

// Counts the differences between each rank's part of `tensor` and block_of(rank).
template <typename BlockOf>
std::int64_t differing_parts(const at::Tensor& tensor, int ranks, const BlockOf& block_of) {
  std::int64_t wrong = 0;
  const auto parts = tensor.chunk(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    wrong += differing(parts[static_cast<std::size_t>(rank)], block_of(rank));
  }
  return wrong;
}

Trial all_reduce(const TrialRequest& r) {
  const auto tensor = allocate(r, r.count);
  return {.rewrite = [=, own = own_block(r)] { refill(tensor, own); },
          .run = [=] { r.group.all_reduce(tensor, r.op); },
          .wrong = [=] { return differing(tensor, sum_block(r)); }};
}

Trial reduce(const TrialRequest& r) {
  const auto tensor = allocate(r, r.count);
  return {.rewrite = [=, own = own_block(r)] { refill(tensor, own); },
          .run = [=] { r.group.reduce(tensor, 0, r.op); },
          .wrong = [=] { return r.group.rank() == 0 ? differing(tensor, sum_block(r)) : 0; }};
}

Trial broadcast(const TrialRequest& r) {
  const auto tensor = allocate(r, r.count);
  return {.rewrite = [=, own = own_block(r)] { refill(tensor, own); },
          .run = [=] { r.group.broadcast(tensor, 0); },
          .wrong = [=] { return differing(tensor, pattern_block(0, r.dtype)); }};
}

Trial all_gather(const TrialRequest& r) {
  const auto input = allocate(r, part(r));
  const auto output = allocate(r, r.count);
  const auto block_of = [=](int rank) { return pattern_block(rank, r.dtype); };
  return {.rewrite = [=, own = own_block(r)] { refill(input, own); },
          .run = [=] { r.group.all_gather_into_tensor(output, input); },
          .clear_output = [=] { output.zero_(); },
          .wrong = [=] { return differing_parts(output, r.group.size(), block_of); }};
}

Trial reduce_scatter(const TrialRequest& r) {
  const auto input = allocate(r, r.count);
  const auto output = allocate(r, part(r));
  return {.rewrite = [=, own = own_block(r)] { refill(input, own); },
          .run = [=] { r.group.reduce_scatter_tensor(output, input, r.op); },
          .clear_output = [=] { output.zero_(); },
          .wrong = [=] { return differing(output, sum_block(r, r.group.rank() * part(r))); }};
}

Trial all_to_all(const TrialRequest& r) {
  const auto input = allocate(r, r.count);
  const auto output = allocate(r, r.count);
  const auto block_of = [=](int rank) { return pattern_block(rank, r.dtype, r.group.rank() * part(r)); };
  return {.rewrite = [=, own = own_block(r)] { refill(input, own); },
          .run = [=] { r.group.all_to_all_single(output, input); },
          .clear_output = [=] { output.zero_(); },
          .wrong = [=] { return differing_parts(output, r.group.size(), block_of); }};
}

// One tensor per rank on rank 0; empty on the others.
Tensors parts_on_root(const TrialRequest& r) {
  Tensors parts;
  for (int rank = 0; r.group.rank() == 0 && rank < r.group.size(); ++rank) {
    parts.push_back(allocate(r, part(r)));
  }
  return parts;
}

Trial gather(const TrialRequest& r) {
  const auto input = allocate(r, part(r));
  const auto outputs = parts_on_root(r);
  const auto wrong = [=] {
    std::int64_t all = 0;
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      all += differing(outputs[rank], pattern_block(static_cast<int>(rank), r.dtype));
    }
    return all;
  };
  return {.rewrite = [=, own = own_block(r)] { refill(input, own); },
          .run = [=] { r.group.gather(input, outputs, 0); },
          .clear_output =
              [=] {
                for (const auto& output : outputs) output.zero_();
              },
          .wrong = wrong};
}

Trial scatter(const TrialRequest& r) {
  const auto inputs = parts_on_root(r);
  const auto output = allocate(r, part(r));
  Tensors blocks;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    blocks.push_back(pattern_block(static_cast<int>(rank), r.dtype));
  }
  return {.rewrite =
              [=] {
                for (std::size_t rank = 0; rank < inputs.size(); ++rank) refill(inputs[rank], blocks[rank]);
              },
          .run = [=] { r.group.scatter(output, inputs, 0); },
          .clear_output = [=] { output.zero_(); },
          .wrong = [=] { return differing(output, own_block(r)); }};
}

Trial send_recv(const TrialRequest& r) {
  const int size = r.group.size();
  const int next = (r.group.rank() + 1) % size;
  const int before = (r.group.rank() + size - 1) % size;
  const auto input = allocate(r, r.count);
  const auto output = allocate(r, r.count);
  const auto run = [=] {
    auto sent = r.group.send_async(input, next);
    r.group.recv(output, before);
    sent.wait();
  };
  return {.rewrite = [=, own = own_block(r)] { refill(input, own); },
          .run = run,
          .clear_output = [=] { output.zero_(); },
          .wrong = [=] { return differing(output, pattern_block(before, r.dtype)); }};
}

Trial barrier(const TrialRequest& r) {
  return {.run = [=] { r.group.barrier(); }};
}

}  // namespace

at::Tensor pattern_block(int rank, c10::ScalarType dtype, std::int64_t offset) {
  return at::arange(offset, offset + kBlock, at::kLong).remainder(kPeriod).add(rank + 1).to(dtype);
}

at::Tensor reduced_block(int ranks, ReduceOp op, c10::ScalarType dtype, std::int64_t offset) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(pattern_block(rank, at::kDouble, offset));
  const auto stack = at::stack(all);
  switch (op) {
    case ReduceOp::AVG:
      return stack.mean(0).to(dtype);
    case ReduceOp::MIN:
      return stack.amin(0).to(dtype);
    case ReduceOp::MAX:
      return stack.amax(0).to(dtype);
    default:
      return stack.sum(0).to(dtype);
  }
}

std::int64_t differing(const at::Tensor& tensor, const at::Tensor& block) {
  const auto whole = tensor.numel() / kBlock * kBlock;
  const auto rest = tensor.numel() - whole;
  const auto blocks = tensor.narrow(0, 0, whole).view({-1, kBlock});
  const auto tail = tensor.narrow(0, whole, rest);
  return blocks.ne(block).sum().item<std::int64_t>() +
         tail.ne(block.narrow(0, 0, rest)).sum().item<std::int64_t>();
}

void refill(const at::Tensor& tensor, const at::Tensor& block) {
  refill(tensor.data_ptr(), tensor.nbytes(), block.data_ptr(), block.nbytes());
}

Trial prepare(const std::string& collective, const TrialRequest& request) {
  static const std::map<std::string, Trial (*)(const TrialRequest&)> all{
      {"all-reduce", all_reduce}, {"all-gather", all_gather}, {"reduce-scatter", reduce_scatter},
      {"broadcast", broadcast},   {"reduce", reduce},         {"gather", gather},
      {"scatter", scatter},       {"all-to-all", all_to_all}, {"send-recv", send_recv},
      {"barrier", barrier}};
  return all.at(find_kind(collective).name)(request);
}

c10::ScalarType scalar_type(const std::string& name) {
  static const std::map<std::string, c10::ScalarType> all{
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int32", at::kInt},     {"int64", at::kLong},     {"uint8", at::kByte}};
  return all.at(find_dtype(name).name);
}

ReduceOp reduce_op(const std::string& name) {
  static const std::map<std::string, ReduceOp> all{
      {"sum", ReduceOp::SUM}, {"avg", ReduceOp::AVG}, {"min", ReduceOp::MIN}, {"max", ReduceOp::MAX}};
  return all.at(name);
}

namespace {

#if defined(__x86_64__)
#define LOCKSTEP_BENCH_FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_BENCH_FOR_EVERY_CPU
#endif

LOCKSTEP_BENCH_FOR_EVERY_CPU
void sum_two(float* __restrict a, float* __restrict b, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

LOCKSTEP_BENCH_FOR_EVERY_CPU
void add(float* total, const float* more, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) total[i] += more[i];
}

void sum_rows(const std::vector<float*>& rows, std::int64_t begin, std::int64_t end) {
  if (rows.size() == 2) {
    sum_two(rows[0] + begin, rows[1] + begin, end - begin);
    return;
  }
  std::array<float, 2048> total;
  constexpr auto kMost = static_cast<std::int64_t>(total.size());
  for (auto at = begin; at < end; at += kMost) {
    const auto count = std::min(kMost, end - at);
    std::copy_n(rows[0] + at, count, total.data());
    for (std::size_t row = 1; row < rows.size(); ++row) add(total.data(), rows[row] + at, count);
    for (auto* row : rows) std::copy_n(total.data(), count, row + at);
  }
}

SharedMemory shared(const ProcessGroup& group, std::size_t bytes) {
  const Deadline deadline(std::chrono::seconds(60));
  if (group.rank() != 0) {
    const auto connection = connect_locally(group.broadcast_object("", 0), deadline);
    return SharedMemory::map(std::move(receive_fds(connection.get(), deadline).fds.front()));
  }
  auto memory = SharedMemory::create("memory limit", bytes);
  memory.commit(0, bytes, "the benchmark");
  memory.prefer_huge_pages(0, bytes);
  const auto listener = listen_locally();
  (void)group.broadcast_object(listener.name, 0);
  for (int other = 1; other < group.size(); ++other) {
    const auto connection = accept_local(listener, deadline);
    send_fds(connection.get(), 0, std::array{memory.fd()}, deadline);
  }
  return memory;
}

}  // namespace

std::function<Trial(std::int64_t)> memory_limit(const ProcessGroup& group, std::size_t bytes) {
  const int ranks = group.size();
  const int rank = group.rank();
  const auto memory = std::make_shared<SharedMemory>(shared(group, bytes * static_cast<std::size_t>(ranks)));
  return [=](std::int64_t count) -> Trial {
    std::vector<float*> rows;
    for (int row = 0; row < ranks; ++row) {
      rows.push_back(reinterpret_cast<float*>(memory->data() + static_cast<std::size_t>(row) * bytes));
    }
    const auto begin = count * rank / ranks;
    const auto end = count * (rank + 1) / ranks;
    const auto own = at::from_blob(rows[static_cast<std::size_t>(rank)], {count});
    const auto block = pattern_block(rank, at::kFloat);
    const auto sum = reduced_block(ranks, ReduceOp::SUM, at::kFloat);
    return {.rewrite = [=] { refill(own, block); },
            .run = [=] { sum_rows(rows, begin, end); },
            .wrong = [=] { return differing(own, sum); }};
  };
}

}  // namespace lockstep::bench
