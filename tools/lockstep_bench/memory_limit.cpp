// SPDX-License-Identifier: BSD-3-Clause
#include "memory_limit.h"

#include <array>

#include <torch/torch.h>

#include <lockstep/base/fd_passing.h>

namespace lockstep::bench {
namespace {

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void sum_two(float* a, float* b, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

void sum_rows(const std::vector<float*>& rows, std::int64_t begin, std::int64_t end) {
  if (rows.size() == 2) {
    sum_two(rows[0] + begin, rows[1] + begin, end - begin);
    return;
  }
  for (auto i = begin; i < end; ++i) {
    float sum = 0;
    for (const auto* row : rows) sum += row[i];
    for (auto* row : rows) row[i] = sum;
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

MemoryLimit::MemoryLimit(const ProcessGroup& group, std::size_t bytes)
    : group_(group), bytes_(bytes), memory_(shared(group, bytes * static_cast<std::size_t>(group.size()))) {}

Trial MemoryLimit::prepare(std::int64_t count) const {
  std::vector<float*> rows;
  for (int rank = 0; rank < group_.size(); ++rank) {
    rows.push_back(reinterpret_cast<float*>(memory_.data() + static_cast<std::size_t>(rank) * bytes_));
  }
  const auto begin = count * group_.rank() / group_.size();
  const auto end = count * (group_.rank() + 1) / group_.size();
  const auto own = torch::from_blob(rows[static_cast<std::size_t>(group_.rank())], {count});
  const auto input = torch::full({count}, static_cast<float>(group_.rank() + 1));
  return {.rewrite = [=] { own.copy_(input); },
          .run = [=] { sum_rows(rows, begin, end); },
          .wrong = [] { return std::int64_t{0}; }};  // nobody waited for the others' parts
}

}  // namespace lockstep::bench
