// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/arrival.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "backends/shm/prefetch.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t word_at(const std::byte* table, std::size_t index) {
  std::uint64_t word = 0;
  std::memcpy(&word, table + index * kWord, kWord);
  return word;
}

bool overlap(const Target& a, const Source& b) {
  const std::less<> before;
  return before(a.data, b.data + b.bytes) && before(b.data, a.data + a.bytes);
}

std::byte* append(std::byte* to, std::uint64_t word) {
  std::memcpy(to, &word, kWord);
  return to + kWord;
}

}  // namespace

void Arrival::prefetch_next() const {
  if (communicator_.size() > 2) return;  // several readers of the descriptor would take the line away again
  const auto next = (number_ + 1) % kSlots;
  prefetch_for_write(&communicator_.own().descriptors[next]);
  prefetch_for_write(communicator_.own().small[next], descriptor_of(communicator_.rank()).payload);
}

void Arrival::resume(const Request& request, std::uint64_t number) {
  request_ = &request;
  number_ = number;
  arrived_ = 0;
  plan_small(request, communicator_.rank(), communicator_.size(), plan_);
}

// Writes the descriptor in one go: each poll of another rank takes its cache line away.
void Arrival::post(const Request& request, std::uint64_t number) {
  resume(request, number);
  const auto what = packed(request);
  const auto bytes = size_of(request);
  const auto payload = table_bytes(request.kind, communicator_.size()) + staged_bytes(plan_);
  const auto longest = longest_lane(plan_);
  const auto offset = offer_zero_copy(payload);
  write_small(payload);
  auto& post = communicator_.own().descriptors[slot()];
  post.what = what;
  post.bytes = bytes;
  post.log_number = request.log_number;
  post.heap_offset = offset;
  post.payload = payload;
  post.longest_lane = longest;
  post.fingerprint = request.fingerprint;
  post.number.store(number, std::memory_order_release);
}

// The memory that other ranks read, and in an all-reduce also write; none if the call has it in several
// pieces.
Source Arrival::offered() const {
  switch (request_->kind) {
    case Kind::all_reduce:
      return {request_->outputs.front().data, request_->outputs.front().bytes};
    case Kind::all_gather:
      return request_->inputs.front();
    case Kind::reduce_scatter: {
      auto whole = request_->inputs.front();
      for (std::size_t i = 1; i < request_->inputs.size(); ++i) {
        if (request_->inputs[i].data != whole.data + whole.bytes) return {};
        whole.bytes += request_->inputs[i].bytes;
      }
      return whole;
    }
    default:
      return {};
  }
}

// Whether this rank's outputs overwrite what other ranks may still read of its input. Its own result may lie
// where its own part is: no other rank reads that part of a reduce-scatter, and an all-gather keeps it.
bool Arrival::writes_into(const Source& memory) const {
  if (request_->kind == Kind::all_reduce) return false;
  for (std::size_t i = 0; i < request_->outputs.size(); ++i) {
    const auto& output = request_->outputs[i];
    const bool is_own =
        request_->kind == Kind::reduce_scatter || i == static_cast<std::size_t>(communicator_.rank());
    if (!(is_own && output.data == plan_.own.data) && overlap(output, memory)) return true;
  }
  return false;
}

// The heap offset of the offered memory, whose parts can then be claimed, or -1.
std::int64_t Arrival::offer_zero_copy(std::uint64_t payload) const {
  if (payload <= kSmallBytes) return -1;
  const auto memory = offered();
  if (memory.data == nullptr || writes_into(memory)) return -1;
  const auto offset = communicator_.heap_offset_of(memory.data, memory.bytes);
  if (offset >= 0) {
    auto& share = communicator_.own().shares[slot()];
    share.claimed.store(0, std::memory_order_relaxed);
    share.done.store(0, std::memory_order_relaxed);
  }
  return offset;
}

void Arrival::write_small(std::uint64_t payload) const {
  std::byte* to = communicator_.own().small[slot()];
  if (is_uneven(request_->kind)) to = write_tables(to);
  if (payload > kSmallBytes) return;
  for (const auto& lane : plan_.stage) {
    if (lane.bytes > 0) std::memcpy(to, lane.data, lane.bytes);
    to += lane.bytes;
  }
}

// The bytes that this rank has for each rank, and those that it expects from each.
std::byte* Arrival::write_tables(std::byte* to) const {
  const auto size = static_cast<std::size_t>(communicator_.size());
  for (std::size_t rank = 0; rank < size; ++rank) to = append(to, bytes_for(rank));
  for (std::size_t rank = 0; rank < size; ++rank)
    to = append(to, plan_.take.empty() ? 0 : plan_.take[rank].bytes);
  return to;
}

std::uint64_t Arrival::bytes_for(std::size_t rank) const {
  if (request_->kind == Kind::all_to_all) return request_->inputs[rank].bytes;
  const bool reads = request_->kind == Kind::all_gather || static_cast<int>(rank) == request_->root;
  return reads ? request_->inputs.front().bytes : 0;
}

Arrival::Seen Arrival::look() {
  for (; arrived_ < communicator_.size(); ++arrived_) {
    if (arrived_ == communicator_.rank()) continue;
    if (descriptor_of(arrived_).number.load(std::memory_order_acquire) != number_) return Seen::not_all;
    if (!agrees(arrived_)) return Seen::other_call;
  }
  if (!is_uneven(request_->kind) || tables_agree()) return Seen::all;
  arrived_ = communicator_.rank();
  return Seen::other_call;
}

bool Arrival::agrees(int rank) const {
  const auto& own = descriptor_of(communicator_.rank());
  const auto& other = descriptor_of(rank);
  return own.what == other.what && own.fingerprint == other.fingerprint &&
         (is_uneven(request_->kind) || own.bytes == other.bytes);
}

// Checks every pair of ranks, so that all ranks find the same difference.
bool Arrival::tables_agree() const {
  const auto size = static_cast<std::size_t>(communicator_.size());
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const auto given = word_at(small_of(static_cast<int>(from)), to);
      if (given != word_at(small_of(static_cast<int>(to)), size + from)) return false;
    }
  }
  return true;
}

bool Arrival::is_small() const {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (descriptor_of(rank).payload > kSmallBytes) return false;
  }
  return true;
}

bool Arrival::is_zero_copy() const {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (descriptor_of(rank).heap_offset < 0) return false;
  }
  return true;
}

// The start of this rank's lane in another rank's small data.
std::size_t Arrival::small_offset(int rank) const {
  std::size_t offset = table_bytes(request_->kind, communicator_.size());
  if (plan_.lanes == 1) return offset;
  const auto own = static_cast<std::size_t>(communicator_.rank());
  if (request_->kind != Kind::all_to_all) return own * request_->outputs.front().bytes;
  for (std::size_t lane = 0; lane < own; ++lane) offset += word_at(small_of(rank), lane);
  return offset;
}

void Arrival::finish_small() { plan_.kernel != nullptr ? reduce() : copy(); }

void Arrival::reduce() {
  rows_.clear();
  for (int rank = 0; rank < communicator_.size(); ++rank)
    rows_.push_back(small_of(rank) + small_offset(rank));
  void* const out = plan_.result.data;
  plan_.kernel(&out, 1, rows_.data(), communicator_.size(), plan_.result.bytes / plan_.width);
}

void Arrival::copy() const {
  take_own(plan_, communicator_.rank());
  for (std::size_t from = 0; from < plan_.take.size(); ++from) {
    const auto rank = static_cast<int>(from);
    const auto& to = plan_.take[from];
    if (rank != communicator_.rank() && to.bytes > 0) {
      std::memcpy(to.data, small_of(rank) + small_offset(rank), to.bytes);
    }
  }
}

}  // namespace lockstep::shm
