// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/arrival.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <ranges>

#include "backends/shm/stream.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

std::uint64_t word_at(const std::byte* table, std::size_t index) {
  std::uint64_t word = 0;
  std::memcpy(&word, table + index * kWord, kWord);
  return word;
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
  const auto longest = longest_portion(plan_);
  const auto at = payload > kSmallBytes ? offer() : 0;
  write_small(payload);
  auto& descriptor = communicator_.own().descriptors[slot()];
  descriptor.what = what;
  descriptor.bytes = bytes;
  descriptor.log_number = request.log_number;
  descriptor.place = at;
  descriptor.payload = payload;
  descriptor.longest_portion = longest;
  descriptor.fingerprint = request.fingerprint;
  descriptor.number.store(number, std::memory_order_release);
}

// Whether this rank's outputs overwrite what other ranks may still read of its data. Its own result may lie
// where its data for itself is.
bool Arrival::overwrites_its_data() const {
  const auto overwrites = [&](const Target& target) {
    return std::ranges::any_of(plan_.stage, [&](const Source& portion) { return overlap(target, portion); });
  };
  const auto own = static_cast<std::size_t>(communicator_.rank());
  for (std::size_t from = 0; from < plan_.take.size(); ++from) {
    const auto& target = plan_.take[from];
    if ((from != own || target.data != plan_.own.data) && overwrites(target)) return true;
  }
  return plan_.result.data != plan_.own.data && overwrites(plan_.result);
}

// Publishes where the data that does not lie beside the descriptor can be read. Returns the place of the only
// portion; of several, the memory that their readers must be able to read.
std::uint64_t Arrival::offer() const {
  const auto& only = plan_.stage.front();
  const auto at = plan_.portions > 1 ? offer_portions() : place_of(only, only.bytes);
  if (at == 0 || overwrites_its_data()) return 0;
  auto& share = communicator_.own().shares[slot()];
  share.claimed.store(0, std::memory_order_relaxed);
  share.done.store(0, std::memory_order_relaxed);
  return at;
}

std::uint64_t Arrival::offer_portions() const {
  const auto before = table_bytes(request_->kind, communicator_.size());
  if (before + plan_.portions * kWord > kSmallBytes) return 0;
  const auto is_read = [&](std::size_t rank) {
    return plan_.stage[rank].bytes > 0 && rank != static_cast<std::size_t>(communicator_.rank());
  };
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < plan_.portions; ++rank)
    longest = std::max(longest, is_read(rank) ? plan_.stage[rank].bytes : 0);
  std::byte* to = communicator_.own().small[slot()] + before;
  auto memory = Memory::heap;
  for (std::size_t rank = 0; rank < plan_.portions; ++rank) {
    const auto at = is_read(rank) ? place_of(plan_.stage[rank], longest) : place(Memory::heap, 0);
    if (memory_of(at) == Memory::unreachable) return 0;
    memory = std::max(memory, memory_of(at));
    to = append(to, at);
  }
  return place(memory, 0);
}

// Ordinary memory is offered only if each byte has one reader, and if one of them has enough of it that a
// system call costs less than staging. Staged data is in the cache for all its readers, and the ranks of a
// gather stage while the root copies, which is faster. The root of a scatter would stage for all.
std::uint64_t Arrival::place_of(const Source& portion, std::size_t longest) const {
  const auto offset = communicator_.heap_offset_of(portion.data, portion.bytes);
  if (offset >= 0) return place(Memory::heap, static_cast<std::uint64_t>(offset));
  const auto kind = request_->kind;
  const bool has_one_reader = plan_.portions > 1 || (kind == Kind::all_gather && communicator_.size() == 2);
  const auto enough = kind == Kind::scatter ? kReadBytes / 2 : kReadBytes;
  if (has_reduction(kind) || !has_one_reader || longest < enough) return 0;
  return place(Memory::process, reinterpret_cast<std::uintptr_t>(portion.data));
}

void Arrival::write_small(std::uint64_t payload) const {
  std::byte* to = communicator_.own().small[slot()];
  if (is_uneven(request_->kind)) to = write_tables(to);
  if (payload > kSmallBytes) return;
  for (const auto& portion : plan_.stage) {
    if (portion.bytes > 0) std::memcpy(to, portion.data, portion.bytes);
    to += portion.bytes;
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

Arrival::Seen Arrival::poll() {
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

bool Arrival::is_in_place() const {
  auto memory = Memory::heap;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const auto& descriptor = descriptor_of(rank);
    if (descriptor.payload <= kSmallBytes) continue;
    if (memory_of(descriptor.place) == Memory::unreachable) return false;
    memory = std::max(memory, memory_of(descriptor.place));
  }
  return memory == Memory::heap || all_read_processes();
}

// Whether every rank can read the memory of all others' processes. A rank tries it once, in the first call
// for which it matters. What it finds counts from its next call on, which no rank has looked at, so that all
// ranks answer alike.
bool Arrival::all_read_processes() const {
  bool all = true;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const auto since = communicator_.control_block(rank).reads_processes.load(std::memory_order_relaxed);
    all = all && since != 0 && since <= number_;
  }
  auto& own = communicator_.own();
  if (own.reads_processes.load(std::memory_order_relaxed) != 0) return all;
  bool can = true;
  for (int rank = 0; can && rank < communicator_.size(); ++rank)
    can = rank == communicator_.rank() || can_read_memory(communicator_, rank);
  const auto numbers = std::views::transform(own.descriptors, [](const Descriptor& descriptor) {
    return descriptor.number.load(std::memory_order_relaxed);
  });
  own.reads_processes.store(can ? std::ranges::max(numbers) + 1 : kNever, std::memory_order_relaxed);
  return all;
}

Row Arrival::row_of(int from) const {
  if (from == communicator_.rank()) return {.mapped = plan_.own.data};
  const auto& descriptor = descriptor_of(from);
  if (descriptor.payload == 0) return {};
  if (descriptor.payload <= kSmallBytes) return {.mapped = small_of(from) + small_offset(from)};
  const auto table = small_of(from) + table_bytes(request_->kind, communicator_.size());
  const auto at =
      plan_.portions == 1 ? descriptor.place : word_at(table, static_cast<std::size_t>(communicator_.rank()));
  if (memory_of(at) == Memory::process) return {.address = offset_of(at)};
  return {.mapped = communicator_.heap(from) + offset_of(at)};
}

// The start of this rank's portion in another rank's small data.
std::size_t Arrival::small_offset(int rank) const {
  std::size_t offset = table_bytes(request_->kind, communicator_.size());
  if (plan_.portions == 1) return offset;
  const auto own = static_cast<std::size_t>(communicator_.rank());
  if (request_->kind != Kind::all_to_all) return own * request_->outputs.front().bytes;
  for (std::size_t portion = 0; portion < own; ++portion) offset += word_at(small_of(rank), portion);
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
