// SPDX-License-Identifier: BSD-3-Clause
#include "node/thread_exchange.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"

namespace lockstep::node {
namespace {

std::vector<int> ranks_missing(const std::vector<RankMemory>& members) {
  std::vector<int> missing;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!members[i].segment) missing.push_back(static_cast<int>(i));
  }
  return missing;
}

}  // namespace

std::vector<RankMemory> ThreadExchange::exchange(const std::string& group, int rank, int size, RankMemory own,
                                                 const Deadline& deadline) {
  const MutexLock lock(mutex_);
  auto& table = tables_[group];
  table.members.resize(static_cast<std::size_t>(size));
  table.members[static_cast<std::size_t>(rank)] = std::move(own);
  changed_.notify_all();
  const auto complete = [&] {
    return std::ranges::all_of(table.members, [](const auto& memory) { return memory.segment != nullptr; });
  };
  changed_.wait_for(mutex_, deadline.remaining(),
                    [&]() LOCKSTEP_REQUIRES(mutex_) { return given_up_ || complete(); });
  if (!complete()) {
    const auto missing = ranks_missing(table.members);
    throw_error<RendezvousError>(
        Reporter{rank, size}, ErrorDetails{.ranks = missing}, "threads of ranks {} {}",
        fmt::join(missing, ", "),
        given_up_ ? "failed or were stopped before they arrived" : "did not arrive to share memory in time");
  }
  auto all = table.members;
  if (++table.seen == size) tables_.erase(group);
  return all;
}

void ThreadExchange::give_up() {
  const MutexLock lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

bool ThreadExchange::given_up() const {
  const MutexLock lock(mutex_);
  return given_up_;
}

}  // namespace lockstep::node
