// SPDX-License-Identifier: BSD-3-Clause

// Note [Shares and parts]
//
// All tensors lie in the ranks' heaps, which every rank maps. The tensor has one share per rank, a share has
// parts of 128 KiB. Two ranks; rank 1 has published its tensor and computes:
//
//                    share of rank 0         share of rank 1
//     rank 0's heap  [ p0 | p1 | p2 ]        [ p0 | p1 | p2 ]
//                       |    |    |             |    |    |
//     claimed by        0    0    0             0    0    1       fetch_add on Share::claimed
//                       |    |    |             |    |    |
//     rank 1's heap  [ p0 | p1 | p2 ]        [ p0 | p1 | p2 ]     read from all heaps, written to all heaps
//
// - A rank begins with its own share. After 16 polls it claims parts of shares that are not done, so a rank
//   that is busy elsewhere delays nobody. Without the polls, ranks that share a core would do each other's
//   work at once, use up their time slices and be scheduled last.
// - A part is read and written by the one rank that claimed it, so parts need no lock. The sum is in rank
//   order, so the bits do not depend on that rank.
// - The call ends when Share::done of every owner has reached the number of its parts. The owner resets its
//   Share before it publishes the descriptor of the call.
#include "backends/shm/collective.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "backends/shm/plan.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kPartBytes = std::size_t{128} * 1024;

// On a shared core, a rank that did the work of the others at once would use up its time slice, and the
// others would wait for it in the next call.
constexpr int kPollsBeforeHelp = 16;

}  // namespace

ZeroCopy::ZeroCopy(const Communicator& communicator, std::uint64_t number, std::vector<std::byte*> rows,
                   int root, std::size_t bytes, std::size_t width, ReduceKernel kernel)
    : communicator_(communicator),
      number_(number),
      rows_(std::move(rows)),
      root_(root),
      cursors_(rows_.size()),
      bytes_(bytes),
      width_(width),
      kernel_(kernel) {}

std::uint32_t ZeroCopy::parts_of(int owner) const {
  const auto length =
      share_start(bytes_, communicator_.size(), owner + 1) - share_start(bytes_, communicator_.size(), owner);
  return static_cast<std::uint32_t>((length + kPartBytes - 1) / kPartBytes);
}

bool ZeroCopy::is_done(int owner) const {
  return share_of(owner).done.load(std::memory_order_acquire) == parts_of(owner);
}

bool ZeroCopy::advance() {
  if (polls_ == 0) work_on(communicator_.rank());
  if (polls_ == kPollsBeforeHelp) {
    for (int step = 1; step < communicator_.size(); ++step)
      work_on((communicator_.rank() + step) % communicator_.size());
  }
  if (polls_ <= kPollsBeforeHelp) ++polls_;
  for (int owner = 0; owner < communicator_.size(); ++owner) {
    if (!is_done(owner)) return false;
  }
  return true;
}

void ZeroCopy::work_on(int owner) {
  auto& share = share_of(owner);
  const auto parts = parts_of(owner);
  const auto start = share_start(bytes_, communicator_.size(), owner);
  const auto end = share_start(bytes_, communicator_.size(), owner + 1);
  std::uint32_t reduced = 0;
  // Reads the counter before the claim, so that ranks without work do not increment it endlessly.
  while (share.claimed.load(std::memory_order_relaxed) < parts) {
    const auto part = share.claimed.fetch_add(1, std::memory_order_relaxed);
    if (part >= parts) break;
    const auto begin = start + part * kPartBytes;
    reduce(begin, std::min(begin + kPartBytes, end));
    ++reduced;
  }
  if (reduced == 0) return;
  share.done.fetch_add(reduced, std::memory_order_acq_rel);
  communicator_.ring();
}

void ZeroCopy::reduce(std::size_t begin, std::size_t end) {
  for (std::size_t i = 0; i < rows_.size(); ++i) cursors_[i] = rows_[i] + begin;
  const auto rows = static_cast<int>(rows_.size());
  if (root_ < 0) return kernel_(cursors_.data(), rows, cursors_.data(), rows, (end - begin) / width_);
  void* const result = cursors_[static_cast<std::size_t>(root_)];
  kernel_(&result, 1, cursors_.data(), rows, (end - begin) / width_);
}

std::vector<int> ZeroCopy::awaited() const {
  std::vector<int> owners;
  for (int owner = 0; owner < communicator_.size(); ++owner) {
    if (owner != communicator_.rank() && !is_done(owner)) owners.push_back(owner);
  }
  return owners;
}

Collective::Collective(const Communicator& communicator, Request request)
    : communicator_(communicator), request_(std::move(request)), arrival_(communicator) {}

void Collective::post(std::uint64_t number, std::uint64_t& pipeline_start) {
  number_ = number;
  pipeline_start_ = &pipeline_start;
  arrival_.post(request_, number);
  communicator_.ring();
}

void Collective::resume(std::uint64_t number, std::uint64_t& pipeline_start) {
  number_ = number;
  pipeline_start_ = &pipeline_start;
  arrival_.resume(request_, number);
}

bool Collective::advance() {
  if (way_ == Way::unknown) {
    if (!everybody_arrived()) return false;
    way_ = choose_way();
    if (way_ == Way::chunked) begin_chunks();
    if (way_ == Way::in_place) begin_in_place();
  }
  if (!finish() || is_in_doubt()) return false;
  communicator_.own().completed.value.store(number_, std::memory_order_release);
  communicator_.ring();
  return true;
}

bool Collective::everybody_arrived() {
  const auto seen = arrival_.poll();
  if (seen == Arrival::Seen::other_call)
    communicator_.fail(GroupFailure::Cause::disagreement, arrival_.who_differs(), number_);
  return seen == Arrival::Seen::all;
}

Collective::Way Collective::choose_way() const {
  if (arrival_.is_small()) return Way::small;
  return arrival_.is_in_place() ? Way::in_place : Way::chunked;
}

bool Collective::finish() {
  if (pipeline_) return pipeline_->advance();
  if (zero_copy_) return zero_copy_->advance();
  if (direct_read_) return direct_read_->advance();
  arrival_.finish_small();
  return true;
}

// Whether a rank whose tensor was reduced may have given up the call and changed its tensor meanwhile.
bool Collective::is_in_doubt() const {
  if (!zero_copy_) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return communicator_.is_failing() || !communicator_.left_before(others(), number_).empty();
}

void Collective::begin_chunks() {
  auto plan = chunked_plan(request_, communicator_.rank(), communicator_.size());
  take_own(plan, communicator_.rank());
  const auto piece = Pipeline::piece_bytes(plan.portions);
  std::uint64_t longest = longest_portion(plan);
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (!has_reduction(request_.kind))
      longest = std::max(longest, arrival_.descriptor_of(rank).longest_portion);
  }
  const auto chunks = (longest + piece - 1) / piece;
  pipeline_.emplace(communicator_, std::move(plan), *pipeline_start_, chunks, piece);
  *pipeline_start_ += chunks;
}

void Collective::begin_in_place() {
  const bool reduces_tensors = request_.kind == Kind::all_reduce || request_.kind == Kind::reduce;
  return reduces_tensors ? begin_zero_copy() : begin_direct_read();
}

void Collective::begin_zero_copy() {
  std::vector<std::byte*> rows;
  for (int rank = 0; rank < communicator_.size(); ++rank)
    rows.push_back(communicator_.heap(rank) + offset_of(arrival_.descriptor_of(rank).place));
  const int root = request_.kind == Kind::reduce ? request_.root : -1;
  zero_copy_.emplace(communicator_, number_, std::move(rows), root, request_.outputs.front().bytes,
                     size_of(request_.element), reduce_kernel(request_.element, request_.reduction));
}

void Collective::begin_direct_read() {
  std::vector<Row> rows;
  for (int rank = 0; rank < communicator_.size(); ++rank) rows.push_back(arrival_.row_of(rank));
  direct_read_.emplace(communicator_, number_, std::move(rows), readers(), arrival_.plan());
}

// The ranks that read this one's data.
std::vector<int> Collective::readers() const {
  const auto& plan = arrival_.plan();
  if (plan.stage.empty()) return {};
  if (request_.kind == Kind::gather) return {request_.root};
  auto ranks = others();
  if (plan.portions > 1)
    std::erase_if(ranks, [&](int rank) { return plan.stage[static_cast<std::size_t>(rank)].bytes == 0; });
  return ranks;
}

std::vector<int> Collective::others() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank != communicator_.rank()) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Collective::awaited() const {
  if (pipeline_) return pipeline_->awaited();
  if (zero_copy_) {
    auto ranks = zero_copy_->awaited();
    std::ranges::copy(communicator_.left_before(others(), number_), std::back_inserter(ranks));
    return ranks;
  }
  if (direct_read_) return direct_read_->awaited();
  std::vector<int> absent;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank != communicator_.rank() &&
        arrival_.descriptor_of(rank).number.load(std::memory_order_acquire) != number_) {
      absent.push_back(rank);
    }
  }
  return absent;
}

std::string Collective::describe_descriptors(const Communicator& communicator, std::uint64_t number) {
  std::string text;
  bool all_alike = true;
  const Descriptor* first = nullptr;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const auto& descriptor = communicator.control_block(rank).descriptors[number % kSlots];
    if (descriptor.number.load(std::memory_order_acquire) != number) continue;
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank,
                        shm::describe(descriptor.what, descriptor.bytes));
    if (first == nullptr) first = &descriptor;
    all_alike = all_alike && descriptor.what == first->what && descriptor.bytes == first->bytes;
  }
  return all_alike ? text + " (alike in size, but not in shape, memory format, dtype or kind of call)" : text;
}

std::vector<int> Collective::ranks_that_differ(const Communicator& communicator, std::uint64_t number) {
  std::vector<int> ranks;
  const Descriptor* first = nullptr;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const auto& descriptor = communicator.control_block(rank).descriptors[number % kSlots];
    if (descriptor.number.load(std::memory_order_acquire) != number) continue;
    if (first == nullptr) first = &descriptor;
    if (descriptor.what != first->what || descriptor.bytes != first->bytes) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace lockstep::shm
