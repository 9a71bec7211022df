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
#include "backends/shm/zero_copy.h"

#include <algorithm>

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

}  // namespace lockstep::shm
