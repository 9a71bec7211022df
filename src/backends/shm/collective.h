// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/shm/call.h"
#include "backends/shm/in_place.h"
#include "backends/shm/meeting.h"
#include "backends/shm/pipeline.h"
#include "backends/shm/request.h"
#include "backends/shm/team.h"

namespace lockstep::shm {

// One collective call of a group, as one rank goes through it:
//   post     what the rank is about to do, and small data right beside it;
//   arrival  everybody has posted, and agrees;
//   and then one of three ways, which all ranks choose alike from the posts:
//   small    all data lies beside the posts: read it, done;
//   in place every rank's tensor lies in its heap (all-reduce): see InPlace;
//   chunked  through the staging buffers, see Pipeline.
class Collective : public Call {
 public:
  Collective(const Team& team, Request request);

  // Under the engine's lock, once: publishes the post of call `number`. `pipeline_start` counts the
  // pipeline's chunks of all calls before this one and is moved past this call's as soon as they are known.
  void post(std::uint64_t number, std::uint64_t& pipeline_start);

  // In place of post(), for a call that Engine::start_brief() has posted.
  void resume(std::uint64_t number, std::uint64_t& pipeline_start);

  bool advance() override;
  std::vector<int> awaited() const override;
  std::string describe() const override;

  std::uint64_t number() const { return number_; }
  // What every rank that has posted call `number` says it is, one a line.
  static std::string posts_of(const Team& team, std::uint64_t number);

 private:
  enum class Way : std::uint8_t { unknown, small, in_place, chunked };

  bool everybody_arrived();
  Way choose_way() const;
  bool finish();
  void begin_chunks();
  void begin_in_place();

  const Team& team_;
  Request request_;
  Meeting meeting_;
  std::uint64_t number_ = 0;
  std::uint64_t* pipeline_start_ = nullptr;
  Way way_ = Way::unknown;
  std::optional<InPlace> in_place_;
  std::optional<Pipeline> pipeline_;
};

}  // namespace lockstep::shm
