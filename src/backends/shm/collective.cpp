// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/collective.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace lockstep::shm {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// Where each rank may bring what it likes, two tables come first: the bytes that it has for each rank, and
// those that it expects from each.
std::size_t table_bytes(const Request& request, const Team& team) {
  return is_uneven(request.kind) ? 2 * static_cast<std::size_t>(team.size()) * kWord : 0;
}

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

Collective::Collective(const Team& team, Request request)
    : team_(team), request_(std::move(request)), plan_(small_plan(request_, team.rank(), team.size())) {}

void Collective::resume(std::uint64_t number, std::uint64_t& pipeline_start) {
  number_ = number;
  pipeline_start_ = &pipeline_start;
}

void Collective::post(std::uint64_t number, std::uint64_t& pipeline_start) {
  resume(number, pipeline_start);
  auto& share = team_.own().shares[slot()];
  share.claimed.store(0, std::memory_order_relaxed);
  share.done.store(0, std::memory_order_relaxed);
  auto& post = team_.own().posts[slot()];
  post.what = packed(request_);
  post.bytes = size_of(request_);
  post.log_number = request_.log_number;
  post.payload = table_bytes(request_, team_) + staged_bytes(plan_);
  post.longest_lane = longest_lane(plan_);
  post.heap_offset = -1;
  if (request_.kind == Kind::all_reduce && post.bytes > kSmallBytes) {
    post.heap_offset = team_.heap_offset_of(request_.outputs.front().data, post.bytes);
  }
  write_small(post.payload);
  post.number.store(number, std::memory_order_release);
  team_.ring();
}

void Collective::write_small(std::uint64_t payload) const {
  std::byte* to = team_.own().small[slot()];
  if (is_uneven(request_.kind)) to = write_tables(to);
  if (payload > kSmallBytes) return;
  for (const auto& lane : plan_.stage) {
    if (lane.bytes > 0) std::memcpy(to, lane.data, lane.bytes);
    to += lane.bytes;
  }
}

std::byte* Collective::write_tables(std::byte* to) const {
  const auto size = static_cast<std::size_t>(team_.size());
  for (std::size_t rank = 0; rank < size; ++rank) to = append(to, bytes_for(rank));
  for (std::size_t rank = 0; rank < size; ++rank)
    to = append(to, plan_.take.empty() ? 0 : plan_.take[rank].bytes);
  return to;
}

std::uint64_t Collective::bytes_for(std::size_t rank) const {
  if (request_.kind == Kind::all_to_all) return request_.inputs[rank].bytes;
  const bool reads = request_.kind == Kind::all_gather || static_cast<int>(rank) == request_.root;
  return reads ? request_.inputs.front().bytes : 0;
}

bool Collective::advance() {
  if (way_ == Way::unknown) {
    if (!everybody_arrived()) return false;
    way_ = choose_way();
    if (way_ == Way::chunked) begin_chunks();
    if (way_ == Way::in_place) begin_in_place();
  }
  if (way_ == Way::small) {
    finish_small();
  } else if (!(way_ == Way::chunked ? pipeline_->advance() : in_place_->advance())) {
    return false;
  }
  team_.own().completed.value.store(number_, std::memory_order_release);
  team_.ring();
  return true;
}

bool Collective::everybody_arrived() {
  for (; arrived_ < team_.size(); ++arrived_) {
    if (arrived_ == team_.rank()) continue;
    if (post_of(arrived_).number.load(std::memory_order_acquire) != number_) return false;
    if (agrees(arrived_)) continue;
    team_.fail(Verdict::Cause::disagreement, arrived_, number_);
    return false;
  }
  if (!is_uneven(request_.kind) || tables_agree()) return true;
  team_.fail(Verdict::Cause::disagreement, team_.rank(), number_);
  return false;
}

bool Collective::agrees(int rank) const {
  const auto& own = post_of(team_.rank());
  const auto& other = post_of(rank);
  return own.what == other.what && (is_uneven(request_.kind) || own.bytes == other.bytes);
}

// Every pair of ranks, so that all of them find the same.
bool Collective::tables_agree() const {
  const auto size = static_cast<std::size_t>(team_.size());
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const auto given = word_at(small_of(static_cast<int>(from)), to);
      if (given != word_at(small_of(static_cast<int>(to)), size + from)) return false;
    }
  }
  return true;
}

Collective::Way Collective::choose_way() const {
  bool small = true;
  bool in_heap = true;
  for (int rank = 0; rank < team_.size(); ++rank) {
    small = small && post_of(rank).payload <= kSmallBytes;
    in_heap = in_heap && post_of(rank).heap_offset >= 0;
  }
  if (small) return Way::small;
  return in_heap ? Way::in_place : Way::chunked;
}

// Where in a rank's small data this rank's lane begins.
std::size_t Collective::small_offset(int rank) const {
  std::size_t offset = table_bytes(request_, team_);
  if (plan_.lanes == 1) return offset;
  const auto own = static_cast<std::size_t>(team_.rank());
  if (request_.kind != Kind::all_to_all) return own * request_.outputs.front().bytes;
  for (std::size_t lane = 0; lane < own; ++lane) offset += word_at(small_of(rank), lane);
  return offset;
}

void Collective::finish_small() {
  if (plan_.kernel != nullptr) {
    std::vector<const void*> in;
    for (int rank = 0; rank < team_.size(); ++rank) in.push_back(small_of(rank) + small_offset(rank));
    void* const out = plan_.result.data;
    plan_.kernel(&out, 1, in.data(), team_.size(), plan_.result.bytes / plan_.width);
    return;
  }
  take_own();
  for (std::size_t from = 0; from < plan_.take.size(); ++from) {
    const auto rank = static_cast<int>(from);
    const auto& to = plan_.take[from];
    if (rank != team_.rank() && to.bytes > 0) {
      std::memcpy(to.data, small_of(rank) + small_offset(rank), to.bytes);
    }
  }
}

void Collective::take_own() const {
  if (plan_.take.empty() || plan_.kernel != nullptr) return;
  const auto& to = plan_.take[static_cast<std::size_t>(team_.rank())];
  if (to.bytes > 0 && to.data != plan_.own.data) std::memmove(to.data, plan_.own.data, plan_.own.bytes);
}

void Collective::begin_chunks() {
  plan_ = chunked_plan(request_, team_.rank(), team_.size());
  take_own();
  const auto piece = Pipeline::piece_bytes(plan_.lanes);
  std::uint64_t longest = longest_lane(plan_);
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (!has_reduction(request_.kind)) longest = std::max(longest, post_of(rank).longest_lane);
  }
  const auto chunks = (longest + piece - 1) / piece;
  pipeline_.emplace(team_, std::move(plan_), *pipeline_start_, chunks, piece);
  *pipeline_start_ += chunks;
}

void Collective::begin_in_place() {
  std::vector<std::byte*> rows;
  for (int rank = 0; rank < team_.size(); ++rank)
    rows.push_back(team_.heap(rank) + post_of(rank).heap_offset);
  in_place_.emplace(team_, number_, std::move(rows), request_.outputs.front().bytes, plan_.width,
                    plan_.kernel);
}

std::vector<int> Collective::awaited() const {
  if (pipeline_) return pipeline_->awaited();
  if (in_place_) return in_place_->awaited();
  std::vector<int> absent;
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank != team_.rank() && post_of(rank).number.load(std::memory_order_acquire) != number_) {
      absent.push_back(rank);
    }
  }
  return absent;
}

std::string Collective::describe() const { return shm::describe(packed(request_), size_of(request_)); }

std::string Collective::posts_of(const Team& team, std::uint64_t number) {
  std::string text;
  for (int rank = 0; rank < team.size(); ++rank) {
    const auto& post = team.area(rank).posts[number % kSlots];
    if (post.number.load(std::memory_order_acquire) != number) continue;
    text +=
        fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, shm::describe(post.what, post.bytes));
  }
  return text;
}

}  // namespace lockstep::shm
