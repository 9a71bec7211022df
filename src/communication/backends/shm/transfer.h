// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// The receiving side of a message: its slot in the channel, and how much of it has been read.
struct Incoming {
  Message* message = nullptr;  // nullptr: none
  std::size_t slot = 0;
  std::uint64_t drained = 0;
  bool in_chunks = false;  // although it could be read where it lies
};

// A message that is moved out of its channel before a receive requested it, so that later messages can be
// received.
struct UnexpectedMessage {
  std::int64_t tag = 0;
  std::uint64_t element = 0;
  std::vector<std::byte> bytes = {};
  Incoming incoming = {};  // while it is incomplete
};

// The messages of one rank that were matched to a receive or were unexpected.
struct MatchedOrder {
  std::uint64_t count = 0;
  std::uint64_t last = 0;  // the highest order among them

  void add(std::uint64_t order) {
    ++count;
    last = std::max(last, order);
  }
  // The order of the oldest unmatched message, if no other has overtaken it; otherwise 0.
  std::uint64_t next() const { return count == last ? last + 1 : 0; }
};

// The state that the transfers of one rank share.
struct Mailbox {
  explicit Mailbox(int size)
      : sends_started(static_cast<std::size_t>(size)),
        sends_posted(static_cast<std::size_t>(size)),
        being_received(static_cast<std::size_t>(size)),
        taken(static_cast<std::size_t>(size)),
        unexpected(static_cast<std::size_t>(size)) {}

  std::vector<std::uint64_t> sends_started;                          // [to]
  std::vector<std::uint64_t> sends_posted;                           // [to]
  std::vector<std::array<std::uint64_t, kMessages>> being_received;  // [from][slot] the order, or 0
  std::vector<MatchedOrder> taken;                                   // [from]
  std::vector<std::list<UnexpectedMessage>> unexpected;              // [from]
};

// The sender of a receive from any rank.
inline constexpr int kAnyRank = -1;

class Receive;

// The message that a receive requests.
struct MatchKey {
  std::int64_t tag = 0;
  int from = 0;  // -1: any rank
};

// A message between two ranks. All calls except construction need the engine's lock. A message of at most
// kMessageChunkBytes completes in the advance() that finds a slot for it, or finds it; before that nothing
// has been done.
class Transfer : public Task {
 public:
  // Whether any single rank of awaited() can complete it; otherwise all of them must.
  virtual bool any_will_do() const { return false; }
  // Itself, if it is a receive without a matching message so far.
  virtual Receive* unmatched() { return nullptr; }
};

class Send : public Transfer {
 public:
  Send(const Communicator& communicator, Mailbox& mailbox, int to, std::int64_t tag, Element element,
       Source source, std::uint64_t log_number);
  bool advance() override;
  std::vector<int> awaited() const override { return {to_}; }

  // For a send that found no slot: the next one takes its turn.
  void give_up() { --mailbox_.sends_started[static_cast<std::size_t>(to_)]; }

 private:
  bool try_post();
  bool try_place(std::size_t slot);
  std::uint64_t offered() const;
  bool is_read_in_place() const;
  bool receiver_reads_process() const;
  bool withdraws();
  void prefetch_next() const;
  void fill_up_to(std::uint64_t end);

  const Communicator& communicator_;
  Mailbox& mailbox_;
  int to_;
  std::int64_t tag_;
  Element element_;
  Source source_;
  std::uint64_t log_number_;
  std::uint64_t order_;
  Message* message_ = nullptr;
  std::size_t slot_ = 0;
  std::uint64_t filled_ = 0;
  std::uint64_t posted_ = 0;  // Message::posted while the message is there
  std::uint64_t place_ = 0;   // Message::place when it was posted
  std::optional<std::chrono::steady_clock::time_point> withdraw_at_{};
};

class Receive : public Transfer {
 public:
  // From any rank when `from` is -1.
  Receive(const Communicator& communicator, Mailbox& mailbox, int from, std::int64_t tag, Element element,
          Target target);
  bool advance() override;
  std::vector<int> awaited() const override;
  bool any_will_do() const override { return from_ < 0; }
  Receive* unmatched() override { return incoming_.message == nullptr ? this : nullptr; }
  MatchKey wanted() const { return {tag_, from_}; }
  // Like advance(), but skips messages that earlier receives request too.
  bool advance_behind(const std::vector<MatchKey>& earlier);

  int source_rank() const { return from_; }  // once finished

 private:
  bool try_match(int from);
  // The slot of the oldest requested message in the channel, or kMessages.
  std::size_t find_message(int from);
  std::size_t search_messages(int from);
  bool is_next(int from, std::size_t slot) const;
  bool try_parked(int from);
  UnexpectedMessage* find_parked(int from);
  bool fits(int from, std::uint64_t element, std::uint64_t bytes);
  bool finish();

  const Communicator& communicator_;
  Mailbox& mailbox_;
  int from_;
  std::int64_t tag_;
  Element element_;
  Target target_;
  Incoming incoming_;
};

}  // namespace lockstep::shm
