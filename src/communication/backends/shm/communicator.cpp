// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/communicator.h"

#include <random>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/shared_memory.h"

namespace lockstep::shm {

Communicator::Communicator(int rank, std::vector<std::byte*> segments, std::vector<std::byte*> heaps,
                           std::size_t heap_bytes, RankObserver observer)
    : rank_(rank),
      segments_(std::move(segments)),
      heaps_(std::move(heaps)),
      own_(reinterpret_cast<ControlBlock*>(segment(rank))),
      heap_bytes_(heap_bytes),
      observer_(std::move(observer)) {
  // Zero bytes are the initial state of everything in a control block.
  blocks_.reserve(segments_.size());
  for (auto* start : segments_) blocks_.push_back(reinterpret_cast<ControlBlock*>(start));
}

Channel& Communicator::channel(int from, int to) const {
  return *reinterpret_cast<Channel*>(segment(from) + Layout::channel_offset(static_cast<std::size_t>(to)));
}

std::int64_t Communicator::heap_offset_of(const std::byte* data, std::size_t bytes) const {
  const auto* const start = heap(rank_);
  const std::less_equal<> not_after;
  if (!not_after(start, data) || !not_after(data + bytes, start + heap_bytes_)) return -1;
  return data - start;
}

void Communicator::ring() const {
  // Either this rank sees the sleeper, or the sleeper sees the publication: both sides have a full fence
  // between their store and their load.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ring_softly();
}

void Communicator::ring_softly() const {
  for (auto* block : blocks_) {
    if (block == own_ || block->sleepers.load(std::memory_order_relaxed) == 0) continue;
    block->bell.fetch_add(1, std::memory_order_relaxed);
    futex_wake_all(block->bell);
  }
}

int Communicator::find_dead() const {
  const int dead = observer_.find_dead ? observer_.find_dead() : -1;
  return dead >= 0 && control_block(dead).left.load(std::memory_order_acquire) != 0 ? -1 : dead;
}

std::string Communicator::name_of(int rank) const {
  return observer_.name_of ? observer_.name_of(rank) : "rank " + std::to_string(rank);
}

ErrorDetails Communicator::details_of(const std::vector<int>& ranks) const {
  return observer_.details_of ? observer_.details_of(ranks) : ErrorDetails{.ranks = ranks};
}

void Communicator::fail(GroupFailure::Cause cause, int culprit, std::uint64_t call) const {
  auto& failure = control_block(0).failure;
  std::uint32_t none = 0;
  if (!failure.state.compare_exchange_strong(none, 1)) return;
  failure.cause = cause;
  failure.reporter = rank_;
  failure.culprit = culprit;
  failure.call = call;
  failure.state.store(2, std::memory_order_release);
  // Before the caller's next writes to tensors: see is_failing().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (auto* block : blocks_) {
    block->bell.fetch_add(1, std::memory_order_relaxed);
    futex_wake_all(block->bell);
  }
}

bool Communicator::is_failing() const {
  return control_block(0).failure.state.load(std::memory_order_acquire) != 0;
}

std::vector<int> Communicator::left_before(std::vector<int> ranks, std::uint64_t number) const {
  std::erase_if(ranks, [&](int rank) {
    const auto& block = control_block(rank);
    return block.left.load(std::memory_order_acquire) == 0 ||
           block.completed.value.load(std::memory_order_acquire) >= number;
  });
  return ranks;
}

const GroupFailure* Communicator::failure() const {
  const auto& failure = control_block(0).failure;
  return failure.state.load(std::memory_order_acquire) == 2 ? &failure : nullptr;
}

namespace {

// The same number in the process's own memory and in its control block: in another pid namespace, the number
// of a process may be that of a stranger.
const std::uint64_t& own_token() {
  static const std::uint64_t token = std::uint64_t{std::random_device{}()} << 32U | std::random_device{}();
  return token;
}

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

void offer_memory(const Communicator& communicator) {
  // Yama otherwise lets only a process's ancestors read it; without Yama this fails and is not needed.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  auto& block = communicator.own();
  block.token = own_token();
  block.token_address = address_of(&own_token());
  block.process = ::getpid();
}

bool can_read_memory(const Communicator& communicator, int peer) {
  std::uint64_t token = 0;
  const auto& block = communicator.control_block(peer);
  return read_memory(communicator, peer, block.token_address,
                     {reinterpret_cast<std::byte*>(&token), sizeof(token)}) &&
         token == block.token;
}

bool read_memory(const Communicator& communicator, int peer, std::uint64_t address, Target target) {
  return read_process_memory(communicator.control_block(peer).process, address, {target.data, target.bytes});
}

}  // namespace lockstep::shm
