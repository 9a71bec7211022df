// SPDX-License-Identifier: BSD-3-Clause
#include "base/run_memory.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/host.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

constexpr std::size_t kHeader = 4096;
constexpr std::size_t kStore = std::size_t{64} << 20U;
static_assert(sizeof(RunState) <= kHeader);

void set_inherited(int fd, bool inherited) {
  if (::fcntl(fd, F_SETFD, inherited ? 0 : FD_CLOEXEC) == 0) return;
  throw_error<Error>("the memory of the run: descriptor {}: {}", fd, errno_text(errno));
}

UniqueFd own_copy(std::int64_t number) {
  const int fd = static_cast<int>(number);
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) {
    throw_error<Error>(
        "{} names descriptor {}: {}; the program, or a script that starts it, must not close descriptors that the "
        "launcher has opened",
        RunMemory::kVariable, fd, errno_text(errno));
  }
  set_inherited(fd, false);
  return copy;
}

void make_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t kind;
  ::pthread_mutexattr_init(&kind);
  ::pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&mutex, &kind);
  ::pthread_mutexattr_destroy(&kind);
}

}  // namespace

RunMemory RunMemory::create(int world_size, bool can_shrink, const std::optional<Share>& share) {
  if (world_size > RunState::kMostRanks) {
    throw_error<Error>(
        "the memory of the run: {} ranks; a run whose ranks are lost one by one has at most {}", world_size,
        RunState::kMostRanks);
  }
  auto memory = SharedMemory::create("lockstep-run", kHeader + kStore);
  memory.commit(0, kHeader, "the state of the run");
  auto* const state = new (memory.data()) RunState;
  state->world_size = world_size;
  state->can_shrink = can_shrink;
  const auto own = share.value_or(Share{.ranks = world_size});
  state->first_rank = own.first_rank;
  state->local_ranks = own.ranks;
  state->store_port = own.store_port;
  if (own.store_token.size() > RunState::kMostOfToken)
    throw_error<Error>("the memory of the run: a token of {} characters", own.store_token.size());
  std::ranges::copy(own.store_token, state->store_token.begin());
  make_mutex(state->store_mutex);
  std::vector<UniqueFd> commits;
  for (int rank = own.first_rank; rank < own.first_rank + own.ranks; ++rank) {
    commits.emplace_back(::memfd_create("lockstep-commits", 0));
    if (!commits.back()) throw_error<Error>("memory for the commits of rank {}: {}", rank, errno_text(errno));
  }
  set_inherited(memory.fd(), true);
  return {std::move(memory), std::move(commits)};
}

std::optional<RunMemory> RunMemory::inherited(const Env& env) {
  const auto text = env.get(kVariable);
  if (!text) return std::nullopt;
  std::vector<UniqueFd> files;
  for (const auto& word : split(*text, ',')) {
    const auto number = parse_number<std::int64_t>(word);
    if (!number) throw_error<Error>("{}=\"{}\" is no list of descriptors", kVariable, *text);
    files.push_back(own_copy(*number));
  }
  auto memory = SharedMemory::map(std::move(files.front()));
  const auto& state = *reinterpret_cast<const RunState*>(memory.data());
  if (memory.size() != kHeader + kStore || state.format != RunState::kFormat ||
      static_cast<std::size_t>(state.local_ranks) + 1 != files.size()) {
    throw_error<Error>(
        "{}=\"{}\" is not the memory of a launcher of this version of Lockstep; use the `lockstep` command of the "
        "version that the program links",
        kVariable, *text);
  }
  files.erase(files.begin());
  return RunMemory(std::move(memory), std::move(files));
}

std::string RunMemory::variable() const {
  std::string text = fmt::format("{}", memory_.fd());
  for (const auto& each : commits_) text += fmt::format(",{}", each.get());
  return text;
}

std::vector<int> RunMemory::remaining() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank)
    if (!state().lost[static_cast<std::size_t>(rank)].load(std::memory_order_acquire)) ranks.push_back(rank);
  return ranks;
}

void RunMemory::lose(int rank) const {
  state().lost.at(static_cast<std::size_t>(rank)).store(true, std::memory_order_release);
  state().note_change();
}

std::span<std::byte> RunMemory::store() const { return {memory_.data() + kHeader, kStore}; }

void RunMemory::commit_store(std::size_t bytes) const {
  memory_.commit(kHeader, bytes, "the store of the run");
}

}  // namespace lockstep
