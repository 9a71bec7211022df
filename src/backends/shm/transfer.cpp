// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/transfer.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace lockstep::shm {
namespace {

std::uint64_t chunks_of(std::uint64_t bytes) { return (bytes + kMessageChunkBytes - 1) / kMessageChunkBytes; }

std::size_t piece_of(std::uint64_t bytes, std::uint64_t chunk) {
  return std::min<std::uint64_t>(kMessageChunkBytes, bytes - chunk * kMessageChunkBytes);
}

// The sender owns a message while this number is even.
bool is_posted(std::uint64_t posted) { return posted % 2 == 1; }

void hand_over(const Team& team, Message& message) {
  message.posted.fetch_add(1, std::memory_order_release);
  team.ring();
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
  auto& channel = team_.channel(team_.rank(), to_);
  for (slot_ = 0; slot_ < kMessages; ++slot_) {
    auto& message = channel.messages[slot_];
    if (is_posted(message.posted.load(std::memory_order_acquire))) continue;
    message.order = order_;
    message.tag = tag_;
    message.element = static_cast<std::uint64_t>(element_);
    message.bytes = source_.bytes;
    message.log_number = log_number_;
    message_ = &message;
    posted = order_;
    fill_up_to(std::min<std::uint64_t>(chunks_of(source_.bytes), kMessageChunks));
    hand_over(team_, message);
    return true;
  }
  return false;
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

bool Receive::advance() {
  if (message_ != nullptr) return drain();
  const int first = from_ < 0 ? 0 : from_;
  const int last = from_ < 0 ? team_.size() - 1 : from_;
  for (int from = first; from <= last; ++from) {
    if (from == team_.rank()) continue;
    if (take_parked(from)) return true;
    if (try_match(from)) return drain();
  }
  return false;
}

bool Receive::fits(int from, std::uint64_t element, std::uint64_t bytes) {
  if (element == static_cast<std::uint64_t>(element_) && bytes == target_.bytes) return true;
  team_.fail(Verdict::Cause::message_mismatch, from, 0);
  return false;
}

bool Receive::take_parked(int from) {
  auto& parked = mailbox_.parked[static_cast<std::size_t>(from)];
  const auto found = std::ranges::find(parked, tag_, &Parked::tag);
  if (found == parked.end() || !fits(from, found->element, found->bytes.size())) return false;
  std::ranges::copy(found->bytes, target_.data);
  parked.erase(found);
  from_ = from;
  return true;
}

bool Receive::try_match(int from) {
  auto& channel = team_.channel(from, team_.rank());
  auto& received = mailbox_.being_received[static_cast<std::size_t>(from)];
  std::size_t waiting = 0;
  std::size_t best = kMessages;
  for (std::size_t slot = 0; slot < kMessages; ++slot) {
    auto& message = channel.messages[slot];
    if (!is_posted(message.posted.load(std::memory_order_acquire)) || received[slot] != 0) continue;
    ++waiting;
    if (message.tag != tag_) continue;
    if (best == kMessages || message.order < channel.messages[best].order) best = slot;
  }
  if (best == kMessages) {
    if (waiting == kMessages) park_one(from);
    return false;
  }
  auto& message = channel.messages[best];
  if (!fits(from, message.element, message.bytes)) return false;
  message_ = &message;
  slot_ = best;
  received[best] = message.order;
  from_ = from;
  return true;
}

// Every place of the channel holds a message that nobody has asked for: the one that is wanted may be waiting
// behind.
void Receive::park_one(int from) {
  auto& channel = team_.channel(from, team_.rank());
  auto& oldest = *std::ranges::min_element(channel.messages, {}, &Message::order);
  const auto slot = static_cast<std::size_t>(&oldest - channel.messages);
  const auto chunks = chunks_of(oldest.bytes);
  // A long message is still being written; its sender goes on once it waits for something itself.
  if (chunks > kMessageChunks || oldest.filled.load(std::memory_order_acquire) < chunks) return;
  Parked parked{.order = oldest.order, .tag = oldest.tag, .element = oldest.element, .bytes = {}};
  parked.bytes.resize(oldest.bytes);
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    std::memcpy(parked.bytes.data() + chunk * kMessageChunkBytes, channel.chunks[slot][chunk],
                piece_of(oldest.bytes, chunk));
  }
  mailbox_.parked[static_cast<std::size_t>(from)].push_back(std::move(parked));
  hand_over(team_, oldest);
}

bool Receive::drain() {
  const auto chunks = chunks_of(target_.bytes);
  const bool sender_waits = chunks > kMessageChunks;
  auto& ring = team_.channel(from_, team_.rank()).chunks[slot_];
  while (drained_ < chunks && drained_ < message_->filled.load(std::memory_order_acquire)) {
    std::memcpy(target_.data + drained_ * kMessageChunkBytes, ring[drained_ % kMessageChunks],
                piece_of(target_.bytes, drained_));
    ++drained_;
    if (!sender_waits) continue;
    message_->drained.store(drained_, std::memory_order_release);
    team_.ring();
  }
  if (drained_ < chunks) return false;
  if (sender_waits) message_->drained.store(0, std::memory_order_relaxed);
  mailbox_.being_received[static_cast<std::size_t>(from_)][slot_] = 0;
  hand_over(team_, *message_);
  return true;
}

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
