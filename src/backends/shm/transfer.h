// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/shm/call.h"
#include "backends/shm/request.h"
#include "backends/shm/team.h"

namespace lockstep::shm {

// The receiving side of a message: its place in the channel, and how far it has been read.
struct Arrival {
  Message* message = nullptr;  // nullptr: none
  std::size_t slot = 0;
  std::uint64_t drained = 0;
};

// A message that is taken out of its channel before anybody asked for it, so that one behind it can be had.
struct Parked {
  std::int64_t tag = 0;
  std::uint64_t element = 0;
  std::vector<std::byte> bytes = {};
  Arrival arrival = {};  // while it has not come whole
};

// What the transfers of one rank have to agree on among themselves.
struct Mailbox {
  explicit Mailbox(int size)
      : sends_started(static_cast<std::size_t>(size)),
        sends_posted(static_cast<std::size_t>(size)),
        being_received(static_cast<std::size_t>(size)),
        parked(static_cast<std::size_t>(size)) {}

  std::vector<std::uint64_t> sends_started;                          // [to]
  std::vector<std::uint64_t> sends_posted;                           // [to]
  std::vector<std::array<std::uint64_t, kMessages>> being_received;  // [from][slot] the order, or 0
  std::vector<std::list<Parked>> parked;                             // [from]
};

// A message between two ranks. Under the engine's lock throughout.
class Transfer : public Call {
 public:
  // Which other ranks could still bring it about: all of awaited() together, or any one of them.
  virtual bool any_will_do() const { return false; }
};

class Send : public Transfer {
 public:
  Send(const Team& team, Mailbox& mailbox, int to, std::int64_t tag, Element element, Source source,
       std::uint64_t log_number);
  bool advance() override;
  std::vector<int> awaited() const override { return {to_}; }
  std::string describe() const override;

 private:
  bool try_post();
  void fill_up_to(std::uint64_t end);

  const Team& team_;
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
};

class Receive : public Transfer {
 public:
  // From any rank when `from` is -1.
  Receive(const Team& team, Mailbox& mailbox, int from, std::int64_t tag, Element element, Target target);
  bool advance() override;
  std::vector<int> awaited() const override;
  bool any_will_do() const override { return from_ < 0; }
  std::string describe() const override;

  int source_rank() const { return from_; }  // once finished

 private:
  bool try_match(int from);
  bool try_parked(int from);
  Parked* find_parked(int from);
  bool fits(int from, std::uint64_t element, std::uint64_t bytes);
  bool finish();

  const Team& team_;
  Mailbox& mailbox_;
  int from_;
  std::int64_t tag_;
  Element element_;
  Target target_;
  Arrival arrival_;
};

}  // namespace lockstep::shm
