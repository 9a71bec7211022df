// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/transfer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "backends/shm/prepare.h"

namespace lockstep::shm {
namespace {

std::uint64_t chunks_of(std::uint64_t bytes) { return (bytes + kMessageChunkBytes - 1) / kMessageChunkBytes; }

std::size_t piece_of(std::uint64_t bytes, std::uint64_t chunk) {
  return std::min<std::uint64_t>(kMessageChunkBytes, bytes - chunk * kMessageChunkBytes);
}

// Short messages go through all places in turns, so that the next one is free, and the sender's, before it is
// needed. Of long ones the chunks had better stay in the cache.
bool is_short(std::uint64_t bytes) { return bytes <= kPrepared; }
std::size_t usual_slot(std::uint64_t order) { return order % kMessages; }

// The sender owns a message while this number is even.
bool is_posted(std::uint64_t posted) { return posted % 2 == 1; }

// Only the owner writes it.
void hand_over(Message& message) {
  message.posted.store(message.posted.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// Copies what has come of a message to `target`. Once that is all, the message's place is free, and true
// returned.
bool drain(const Team& team, Mailbox& mailbox, int from, Arrival& arrival, Target target) {
  auto& message = *arrival.message;
  const auto chunks = chunks_of(target.bytes);
  const bool sender_waits = chunks > kMessageChunks;
  const auto& ring = team.channel(from, team.rank()).chunks[arrival.slot];
  while (arrival.drained < chunks && arrival.drained < message.filled.load(std::memory_order_acquire)) {
    std::memcpy(target.data + arrival.drained * kMessageChunkBytes, ring[arrival.drained % kMessageChunks],
                piece_of(target.bytes, arrival.drained));
    ++arrival.drained;
    if (!sender_waits) continue;
    message.drained.store(arrival.drained, std::memory_order_release);
    team.ring();
  }
  if (arrival.drained < chunks) return false;
  if (sender_waits) message.drained.store(0, std::memory_order_relaxed);
  mailbox.being_received[static_cast<std::size_t>(from)][arrival.slot] = 0;
  arrival.message = nullptr;
  hand_over(message);
  is_short(target.bytes) ? team.ring_softly() : team.ring();
  return true;
}

void bring_in(const Team& team, Mailbox& mailbox, int from, Parked& parked) {
  if (parked.arrival.message != nullptr)
    drain(team, mailbox, from, parked.arrival, {parked.bytes.data(), parked.bytes.size()});
}

void bring_in_parked(const Team& team, Mailbox& mailbox, int from) {
  for (auto& parked : mailbox.parked[static_cast<std::size_t>(from)]) bring_in(team, mailbox, from, parked);
}

// Every place of the channel holds a message that nobody has asked for: the one that is wanted may be waiting
// behind. A long message goes on coming in while this rank waits for others.
void park_oldest(const Team& team, Mailbox& mailbox, int from) {
  auto& channel = team.channel(from, team.rank());
  auto& oldest = *std::ranges::min_element(channel.messages, {}, &Message::order);
  const auto slot = static_cast<std::size_t>(&oldest - channel.messages);
  auto& parked = mailbox.parked[static_cast<std::size_t>(from)].emplace_back(
      Parked{.tag = oldest.tag, .element = oldest.element, .bytes = std::vector<std::byte>(oldest.bytes)});
  parked.arrival = {.message = &oldest, .slot = slot};
  mailbox.being_received[static_cast<std::size_t>(from)][slot] = oldest.order;
  mailbox.taken[static_cast<std::size_t>(from)].add(oldest.order);
  bring_in(team, mailbox, from, parked);
}

}  // namespace

Send::Send(const Team& team, Mailbox& mailbox, int to, std::int64_t tag, Element element, Source source,
           std::uint64_t log_number)
    : team_(team),
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
    if (is_short(source_.bytes)) prepare_next();
    return true;
  }
  return false;
}

bool Send::try_place(std::size_t slot) {
  auto& message = team_.channel(team_.rank(), to_).messages[slot];
  if (is_posted(message.posted.load(std::memory_order_acquire))) return false;
  slot_ = slot;
  message_ = &message;
  // The header last, and in one go: a receiver that looks for it takes its line away each time.
  fill_up_to(std::min<std::uint64_t>(chunks_of(source_.bytes), kMessageChunks));
  message.order = order_;
  message.tag = tag_;
  message.element = static_cast<std::uint64_t>(element_);
  message.bytes = source_.bytes;
  message.log_number = log_number_;
  hand_over(message);
  team_.ring();
  return true;
}

void Send::prepare_next() const {
  auto& channel = team_.channel(team_.rank(), to_);
  const auto next = usual_slot(order_ + 1);
  prepare_to_write(&channel.messages[next]);
  prepare_to_write(channel.chunks[next][0], source_.bytes);
}

void Send::fill_up_to(std::uint64_t end) {
  auto& ring = team_.channel(team_.rank(), to_).chunks[slot_];
  for (; filled_ < end; ++filled_) {
    std::memcpy(ring[filled_ % kMessageChunks], source_.data + filled_ * kMessageChunkBytes,
                piece_of(source_.bytes, filled_));
  }
  message_->filled.store(filled_, std::memory_order_release);
}

bool Send::advance() {
  if (message_ == nullptr && !try_post()) return false;
  const auto chunks = chunks_of(source_.bytes);
  while (filled_ < chunks && filled_ < message_->drained.load(std::memory_order_acquire) + kMessageChunks) {
    fill_up_to(filled_ + 1);
    team_.ring();
  }
  return filled_ == chunks;
}

std::string Send::describe() const {
  return fmt::format("send of {} bytes to rank {} with tag {}", source_.bytes, to_, tag_);
}

Receive::Receive(const Team& team, Mailbox& mailbox, int from, std::int64_t tag, Element element,
                 Target target)
    : team_(team), mailbox_(mailbox), from_(from), tag_(tag), element_(element), target_(target) {}

bool Receive::advance() { return advance_behind({}); }

bool Receive::advance_behind(const std::vector<Wanted>& earlier) {
  if (arrival_.message != nullptr) return finish();
  const int first = from_ < 0 ? 0 : from_;
  const int last = from_ < 0 ? team_.size() - 1 : from_;
  for (int from = first; from <= last; ++from) {
    if (from == team_.rank()) continue;
    bring_in_parked(team_, mailbox_, from);
    if (std::ranges::any_of(earlier, [&](const Wanted& other) {
          return other.tag == tag_ && (other.from < 0 || other.from == from);
        })) {
      continue;
    }
    // One that is parked was sent before those in the channel.
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
  team_.fail(Verdict::Cause::message_mismatch, from, 0);
  return false;
}

Parked* Receive::find_parked(int from) {
  auto& parked = mailbox_.parked[static_cast<std::size_t>(from)];
  const auto found = std::ranges::find(parked, tag_, &Parked::tag);
  return found == parked.end() ? nullptr : &*found;
}

// The one of find_parked().
bool Receive::try_parked(int from) {
  auto& parked = mailbox_.parked[static_cast<std::size_t>(from)];
  const auto found = std::ranges::find(parked, tag_, &Parked::tag);
  if (found->arrival.message != nullptr || !fits(from, found->element, found->bytes.size())) return false;
  std::ranges::copy(found->bytes, target_.data);
  parked.erase(found);
  from_ = from;
  return true;
}

bool Receive::try_match(int from) {
  const auto slot = find_message(from);
  if (slot == kMessages) return false;
  auto& message = team_.channel(from, team_.rank()).messages[slot];
  if (!fits(from, message.element, message.bytes)) return false;
  arrival_ = {.message = &message, .slot = slot};
  mailbox_.being_received[static_cast<std::size_t>(from)][slot] = message.order;
  mailbox_.taken[static_cast<std::size_t>(from)].add(message.order);
  from_ = from;
  return true;
}

// Whether the place holds the oldest message that has not been taken, and it is the one that is wanted.
bool Receive::is_next(int from, std::size_t slot) const {
  const auto& message = team_.channel(from, team_.rank()).messages[slot];
  return is_posted(message.posted.load(std::memory_order_acquire)) && message.tag == tag_ &&
         message.order == mailbox_.taken[static_cast<std::size_t>(from)].next();
}

std::size_t Receive::find_message(int from) {
  const auto usual = usual_slot(mailbox_.taken[static_cast<std::size_t>(from)].next());
  if (is_next(from, usual)) return usual;
  const auto found = look_through(from);
  // One that was sent before it may meanwhile have come to a place that had been passed. Now it can be seen.
  return found == kMessages ? found : look_through(from);
}

std::size_t Receive::look_through(int from) {
  const auto& messages = team_.channel(from, team_.rank()).messages;
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
  if (best == kMessages && waiting == kMessages) park_oldest(team_, mailbox_, from);
  return best;
}

bool Receive::finish() { return drain(team_, mailbox_, from_, arrival_, target_); }

std::vector<int> Receive::awaited() const {
  if (from_ >= 0) return {from_};
  std::vector<int> others;
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank != team_.rank()) others.push_back(rank);
  }
  return others;
}

std::string Receive::describe() const {
  const auto source = from_ < 0 ? std::string("any rank") : fmt::format("rank {}", from_);
  return fmt::format("recv of {} bytes from {} with tag {}", target_.bytes, source, tag_);
}

}  // namespace lockstep::shm
