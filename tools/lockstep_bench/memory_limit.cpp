// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <memory>

#include <ATen/ops/from_blob.h>

#include "base/fd_passing.h"
#include "base/shared_memory.h"
#include "collectives.h"

namespace lockstep::bench {
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
