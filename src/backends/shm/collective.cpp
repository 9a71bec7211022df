// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/collective.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::shm {

Collective::Collective(const Team& team, Request request)
    : team_(team), request_(std::move(request)), meeting_(team) {}

void Collective::post(std::uint64_t number, std::uint64_t& pipeline_start) {
  number_ = number;
  pipeline_start_ = &pipeline_start;
  meeting_.post(request_, number);
  team_.ring();
}

void Collective::resume(std::uint64_t number, std::uint64_t& pipeline_start) {
  number_ = number;
  pipeline_start_ = &pipeline_start;
  meeting_.resume(request_, number);
}

bool Collective::advance() {
  if (way_ == Way::unknown) {
    if (!everybody_arrived()) return false;
    way_ = choose_way();
    if (way_ == Way::chunked) begin_chunks();
    if (way_ == Way::in_place) begin_in_place();
  }
  if (!finish()) return false;
  team_.own().completed.value.store(number_, std::memory_order_release);
  team_.ring();
  return true;
}

bool Collective::everybody_arrived() {
  const auto seen = meeting_.look();
  if (seen == Meeting::Seen::other_call)
    team_.fail(Verdict::Cause::disagreement, meeting_.who_differs(), number_);
  return seen == Meeting::Seen::all;
}

Collective::Way Collective::choose_way() const {
  if (meeting_.is_small()) return Way::small;
  return meeting_.is_in_place() ? Way::in_place : Way::chunked;
}

bool Collective::finish() {
  if (pipeline_) return pipeline_->advance();
  if (in_place_) return in_place_->advance();
  meeting_.finish_small();
  return true;
}

void Collective::begin_chunks() {
  auto plan = chunked_plan(request_, team_.rank(), team_.size());
  take_own(plan, team_.rank());
  const auto piece = Pipeline::piece_bytes(plan.lanes);
  std::uint64_t longest = longest_lane(plan);
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (!has_reduction(request_.kind)) longest = std::max(longest, meeting_.post_of(rank).longest_lane);
  }
  const auto chunks = (longest + piece - 1) / piece;
  pipeline_.emplace(team_, std::move(plan), *pipeline_start_, chunks, piece);
  *pipeline_start_ += chunks;
}

void Collective::begin_in_place() {
  const auto& plan = meeting_.plan();
  std::vector<std::byte*> rows;
  rows.reserve(static_cast<std::size_t>(team_.size()));
  for (int rank = 0; rank < team_.size(); ++rank)
    rows.push_back(team_.heap(rank) + meeting_.post_of(rank).heap_offset);
  in_place_.emplace(team_, number_, std::move(rows), request_.outputs.front().bytes, plan.width, plan.kernel);
}

std::vector<int> Collective::awaited() const {
  if (pipeline_) return pipeline_->awaited();
  if (in_place_) return in_place_->awaited();
  std::vector<int> absent;
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank != team_.rank() && meeting_.post_of(rank).number.load(std::memory_order_acquire) != number_) {
      absent.push_back(rank);
    }
  }
  return absent;
}

std::string Collective::describe() const { return shm::describe(packed(request_), size_of(request_)); }

std::string Collective::posts_of(const Team& team, std::uint64_t number) {
  std::string text;
  bool all_alike = true;
  const Post* first = nullptr;
  for (int rank = 0; rank < team.size(); ++rank) {
    const auto& post = team.area(rank).posts[number % kSlots];
    if (post.number.load(std::memory_order_acquire) != number) continue;
    text +=
        fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, shm::describe(post.what, post.bytes));
    if (first == nullptr) first = &post;
    all_alike = all_alike && post.what == first->what && post.bytes == first->bytes;
  }
  return all_alike ? text + " (alike in size, but not in shape, memory format, dtype or kind of call)" : text;
}

}  // namespace lockstep::shm
