// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/transfer.h"

#include <cstring>

#include "backends/shm/stream.h"

namespace lockstep::shm {
namespace {

std::uint64_t chunks_of(std::uint64_t bytes) { return (bytes + kMessageChunkBytes - 1) / kMessageChunkBytes; }

std::size_t piece_of(std::uint64_t bytes, std::uint64_t chunk) {
  return std::min<std::uint64_t>(kMessageChunkBytes, bytes - chunk * kMessageChunkBytes);
}

// Short messages rotate through all slots, so that the next slot is free and in the sender's cache before it
// is needed. Long ones reuse a slot, so that its chunks stay in the cache.
bool is_short(std::uint64_t bytes) { return bytes <= kPrefetched; }
std::size_t usual_slot(std::uint64_t order) { return order % kMessages; }

// The sender owns a message while this number is even.
bool is_posted(std::uint64_t posted) { return posted % 2 == 1; }

// Only the owner writes it.
void hand_over(Message& message) {
  message.posted.store(message.posted.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// The sender of such a message waits for the receiver in any case.
bool is_long(std::uint64_t bytes) { return chunks_of(bytes) > kMessageChunks; }

// The place of a message whose receiver reads it there: its sender can no longer withdraw it.
constexpr std::uint64_t kClaimed = place(Memory::unreachable, 1);

// For how long a sender that could copy its message waits for the receiver to read it.
constexpr std::chrono::microseconds kWithdrawAfter{200};

std::uint64_t claim(Message& message) {
  auto at = message.place.load(std::memory_order_relaxed);
  if (memory_of(at) == Memory::unreachable || is_long(message.bytes)) return at;
  return message.place.compare_exchange_strong(at, kClaimed, std::memory_order_acq_rel) ? at : 0;
}

// Reads the whole message in the sender's process, if it is offered there. False if its chunks are needed.
bool tries_in_process(const Communicator& communicator, int from, std::uint64_t at, Target target) {
  auto& reads = communicator.channel(from, communicator.rank()).memory_reads;
  const auto known = reads.load(std::memory_order_relaxed);
  const bool is_offered = memory_of(at) == Memory::process;
  const bool can =
      known == MemoryReads::work || (known == MemoryReads::untried && can_read_memory(communicator, from));
  const bool done = can && is_offered && read_memory(communicator, from, offset_of(at), target);
  const auto found = can && (done || !is_offered) ? MemoryReads::work : MemoryReads::refused;
  if (known == found) return done;
  reads.store(found, std::memory_order_release);
  communicator.ring();
  return done;
}

bool tries_in_place(const Communicator& communicator, int from, std::uint64_t at, Target target) {
  if (target.bytes < kReadBytes) return false;
  if (memory_of(at) != Memory::heap) return tries_in_process(communicator, from, at, target);
  copy_part(target.data, communicator.heap(from) + offset_of(at), target.bytes, target.bytes);
  return true;
}

// Whether the sender may have used its memory for something else while it was read.
bool has_given_up(const Communicator& communicator, int from) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return communicator.is_failing() ||
         communicator.control_block(from).left.load(std::memory_order_acquire) != 0;
}

// Copies the chunks of a message that have arrived to `target`. When it is complete, frees the slot and
// returns true.
bool drain(const Communicator& communicator, Mailbox& mailbox, int from, Incoming& incoming, Target target) {
  auto& message = *incoming.message;
  const auto chunks = chunks_of(target.bytes);
  const bool sender_waits = is_long(target.bytes);
  if (!incoming.in_chunks && incoming.drained < chunks) {
    const auto at = claim(message);
    if (memory_of(at) != Memory::unreachable && has_given_up(communicator, from)) return false;
    if (tries_in_place(communicator, from, at, target)) {
      if (has_given_up(communicator, from)) return false;
      incoming.drained = chunks;
    } else {
      incoming.in_chunks = true;
    }
  }
  const auto& ring = communicator.channel(from, communicator.rank()).chunks[incoming.slot];
  while (incoming.drained < chunks && incoming.drained < message.filled.load(std::memory_order_acquire)) {
    std::memcpy(target.data + incoming.drained * kMessageChunkBytes, ring[incoming.drained % kMessageChunks],
                piece_of(target.bytes, incoming.drained));
    ++incoming.drained;
    if (!sender_waits) continue;
    message.drained.store(incoming.drained, std::memory_order_release);
    communicator.ring();
  }
  if (incoming.drained < chunks) return false;
  if (sender_waits) message.drained.store(0, std::memory_order_relaxed);
  mailbox.being_received[static_cast<std::size_t>(from)][incoming.slot] = 0;
  incoming.message = nullptr;
  hand_over(message);
  is_short(target.bytes) ? communicator.ring_softly() : communicator.ring();
  return true;
}

void bring_in(const Communicator& communicator, Mailbox& mailbox, int from, UnexpectedMessage& unexpected) {
  if (unexpected.incoming.message != nullptr)
    drain(communicator, mailbox, from, unexpected.incoming,
          {unexpected.bytes.data(), unexpected.bytes.size()});
}

void bring_in_parked(const Communicator& communicator, Mailbox& mailbox, int from) {
  for (auto& unexpected : mailbox.unexpected[static_cast<std::size_t>(from)])
    bring_in(communicator, mailbox, from, unexpected);
}

// Every slot of the channel holds a message without a receive; the requested one may wait behind them. A long
// message continues to arrive while this rank waits for others.
void park_oldest(const Communicator& communicator, Mailbox& mailbox, int from) {
  auto& channel = communicator.channel(from, communicator.rank());
  auto& oldest = *std::ranges::min_element(channel.messages, {}, &Message::order);
  const auto slot = static_cast<std::size_t>(&oldest - channel.messages);
  auto& unexpected = mailbox.unexpected[static_cast<std::size_t>(from)].emplace_back(UnexpectedMessage{
      .tag = oldest.tag, .element = oldest.element, .bytes = std::vector<std::byte>(oldest.bytes)});
  unexpected.incoming = {.message = &oldest, .slot = slot};
  mailbox.being_received[static_cast<std::size_t>(from)][slot] = oldest.order;
  mailbox.taken[static_cast<std::size_t>(from)].add(oldest.order);
  bring_in(communicator, mailbox, from, unexpected);
}

}  // namespace

Send::Send(const Communicator& communicator, Mailbox& mailbox, int to, std::int64_t tag, Element element,
           Source source, std::uint64_t log_number)
    : communicator_(communicator),
      mailbox_(mailbox),
      to_(to),
      tag_(tag),
      element_(element),
      source_(source),
      log_number_(log_number),
      order_(++mailbox.sends_started[static_cast<std::size_t>(to)]) {}

bool Send::try_post() {
  auto& posted = mailbox_.sends_posted[static_cast<std::size_t>(to_)];
  if (posted + 1 != order_) return false;
  const auto first = is_short(source_.bytes) ? usual_slot(order_) : 0;
  for (std::size_t i = 0; i < kMessages; ++i) {
    if (!try_place((first + i) % kMessages)) continue;
    posted = order_;
    if (is_short(source_.bytes)) prefetch_next();
    return true;
  }
  return false;
}

bool Send::try_place(std::size_t slot) {
  auto& message = communicator_.channel(communicator_.rank(), to_).messages[slot];
  if (is_posted(message.posted.load(std::memory_order_acquire))) return false;
  slot_ = slot;
  message_ = &message;
  // Writes the header last and in one go: each poll of the receiver takes its cache line away.
  place_ = offered();
  message.place.store(place_, std::memory_order_relaxed);
  fill_up_to(is_read_in_place() ? 0 : std::min<std::uint64_t>(chunks_of(source_.bytes), kMessageChunks));
  message.order = order_;
  message.tag = tag_;
  message.element = static_cast<std::uint64_t>(element_);
  message.bytes = source_.bytes;
  message.log_number = log_number_;
  posted_ = message.posted.load(std::memory_order_relaxed) + 1;
  hand_over(message);
  communicator_.ring();
  return true;
}

// The sender then waits until the receiver has read the message.
std::uint64_t Send::offered() const {
  if (source_.bytes < kReadBytes) return 0;
  const auto offset = communicator_.heap_offset_of(source_.data, source_.bytes);
  if (offset >= 0) return place(Memory::heap, static_cast<std::uint64_t>(offset));
  if (!is_long(source_.bytes) && !receiver_reads_process()) return 0;
  return place(Memory::process, reinterpret_cast<std::uintptr_t>(source_.data));
}

bool Send::is_read_in_place() const {
  const auto memory = memory_of(place_);
  return memory == Memory::heap || (memory == Memory::process && receiver_reads_process());
}

bool Send::receiver_reads_process() const {
  const auto& reads = communicator_.channel(communicator_.rank(), to_).memory_reads;
  return reads.load(std::memory_order_acquire) == MemoryReads::work;
}

// Copies a message of few chunks that its receiver does not read soon, so that send() ends without it.
bool Send::withdraws() {
  const auto now = std::chrono::steady_clock::now();
  if (!withdraw_at_) withdraw_at_ = now + kWithdrawAfter;
  if (now < *withdraw_at_) return false;
  fill_up_to(chunks_of(source_.bytes));
  auto offered = place_;
  return message_->place.compare_exchange_strong(offered, 0, std::memory_order_acq_rel);
}

void Send::prefetch_next() const {
  auto& channel = communicator_.channel(communicator_.rank(), to_);
  const auto next = usual_slot(order_ + 1);
  prefetch_for_write(&channel.messages[next]);
  prefetch_for_write(channel.chunks[next][0], source_.bytes);
}

void Send::fill_up_to(std::uint64_t end) {
  auto& ring = communicator_.channel(communicator_.rank(), to_).chunks[slot_];
  for (; filled_ < end; ++filled_) {
    std::memcpy(ring[filled_ % kMessageChunks], source_.data + filled_ * kMessageChunkBytes,
                piece_of(source_.bytes, filled_));
  }
  message_->filled.store(filled_, std::memory_order_release);
}

bool Send::advance() {
  if (message_ == nullptr && !try_post()) return false;
  if (message_->posted.load(std::memory_order_acquire) != posted_) return true;
  if (is_read_in_place()) return !is_long(source_.bytes) && withdraws();
  const auto chunks = chunks_of(source_.bytes);
  while (filled_ < chunks && filled_ < message_->drained.load(std::memory_order_acquire) + kMessageChunks) {
    fill_up_to(filled_ + 1);
    communicator_.ring();
  }
  return filled_ == chunks;
}

Receive::Receive(const Communicator& communicator, Mailbox& mailbox, int from, std::int64_t tag,
                 Element element, Target target)
    : communicator_(communicator),
      mailbox_(mailbox),
      from_(from),
      tag_(tag),
      element_(element),
      target_(target) {}

bool Receive::advance() { return advance_behind({}); }

bool Receive::advance_behind(const std::vector<MatchKey>& earlier) {
  if (incoming_.message != nullptr) return finish();
  const int first = from_ < 0 ? 0 : from_;
  const int last = from_ < 0 ? communicator_.size() - 1 : from_;
  for (int from = first; from <= last; ++from) {
    if (from == communicator_.rank()) continue;
    bring_in_parked(communicator_, mailbox_, from);
    if (std::ranges::any_of(earlier, [&](const MatchKey& other) {
          return other.tag == tag_ && (other.from < 0 || other.from == from);
        })) {
      continue;
    }
    // An unexpected message was sent before those in the channel.
    if (find_parked(from) != nullptr) {
      if (try_parked(from)) return true;
    } else if (try_match(from)) {
      return finish();
    }
  }
  return false;
}

bool Receive::fits(int from, std::uint64_t element, std::uint64_t bytes) {
  if (element == static_cast<std::uint64_t>(element_) && bytes == target_.bytes) return true;
  communicator_.fail(GroupFailure::Cause::message_mismatch, from, 0);
  return false;
}

UnexpectedMessage* Receive::find_parked(int from) {
  auto& unexpected = mailbox_.unexpected[static_cast<std::size_t>(from)];
  const auto found = std::ranges::find(unexpected, tag_, &UnexpectedMessage::tag);
  return found == unexpected.end() ? nullptr : &*found;
}

// The message of find_parked().
bool Receive::try_parked(int from) {
  auto& unexpected = mailbox_.unexpected[static_cast<std::size_t>(from)];
  const auto found = std::ranges::find(unexpected, tag_, &UnexpectedMessage::tag);
  if (found->incoming.message != nullptr || !fits(from, found->element, found->bytes.size())) return false;
  std::ranges::copy(found->bytes, target_.data);
  unexpected.erase(found);
  from_ = from;
  return true;
}

bool Receive::try_match(int from) {
  const auto slot = find_message(from);
  if (slot == kMessages) return false;
  auto& message = communicator_.channel(from, communicator_.rank()).messages[slot];
  if (!fits(from, message.element, message.bytes)) return false;
  incoming_ = {.message = &message, .slot = slot};
  mailbox_.being_received[static_cast<std::size_t>(from)][slot] = message.order;
  mailbox_.taken[static_cast<std::size_t>(from)].add(message.order);
  from_ = from;
  return true;
}

// Whether the slot holds the oldest message that has not been taken, and it is the requested one.
bool Receive::is_next(int from, std::size_t slot) const {
  const auto& message = communicator_.channel(from, communicator_.rank()).messages[slot];
  return is_posted(message.posted.load(std::memory_order_acquire)) && message.tag == tag_ &&
         message.order == mailbox_.taken[static_cast<std::size_t>(from)].next();
}

std::size_t Receive::find_message(int from) {
  const auto usual = usual_slot(mailbox_.taken[static_cast<std::size_t>(from)].next());
  if (is_next(from, usual)) return usual;
  const auto found = search_messages(from);
  // An earlier message may meanwhile have arrived in a slot that the scan had passed. Now it is visible.
  return found == kMessages ? found : search_messages(from);
}

std::size_t Receive::search_messages(int from) {
  const auto& messages = communicator_.channel(from, communicator_.rank()).messages;
  const auto& received = mailbox_.being_received[static_cast<std::size_t>(from)];
  std::size_t waiting = 0;
  std::size_t best = kMessages;
  for (std::size_t slot = 0; slot < kMessages; ++slot) {
    const auto& message = messages[slot];
    if (!is_posted(message.posted.load(std::memory_order_acquire)) || received[slot] != 0) continue;
    ++waiting;
    if (message.tag != tag_) continue;
    if (best == kMessages || message.order < messages[best].order) best = slot;
  }
  if (best == kMessages && waiting == kMessages) park_oldest(communicator_, mailbox_, from);
  return best;
}

bool Receive::finish() { return drain(communicator_, mailbox_, from_, incoming_, target_); }

std::vector<int> Receive::awaited() const {
  if (from_ >= 0) return {from_};
  std::vector<int> others;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank != communicator_.rank()) others.push_back(rank);
  }
  return others;
}

}  // namespace lockstep::shm
