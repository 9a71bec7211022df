// SPDX-License-Identifier: BSD-3-Clause

// Note [Pipeline of chunks]
//
// Tensors in ordinary memory pass through staging buffers, four per rank, of 256 KiB, which stay in the
// cache. One chunk of an all-reduce over three ranks:
//
//                    rank 0             rank 1             rank 2
//     stage      [ -  | b0 | c0 ]   [ a1 | -  | c1 ]   [ a2 | b2 | -  ]   memcpy, a portion for each reader
//     combine    A = a0+a1+a2       B = b0+b1+b2       C = c0+c1+c2       portion r of all, in rank order
//                [ A  | b0 | c0 ]   [ a1 | B  | c1 ]   [ a2 | b2 | C  ]   the sum goes into portion r
//     take       B and C            A and C            A and B            memcpy
//
// Calls without a reduction skip `combine`; where all ranks read the same data there is one portion. Several
// chunks are in progress at once:
//
//     staged     0 1 2 3 . 4 . 5          chunk g lies in buffer g mod 4
//     combined     0 1 . 2 . 3            waits until all ranks have staged it
//     taken            0 . 1              waits until the sources have combined (or staged) it
//
// Each rank publishes the three counts in its control block (release) and reads the others' (acquire). A
// buffer is filled again when every rank's `taken` has passed its last chunk. `taken` never passes the rank's
// own `combined`, so it covers both kinds of reads. The counts grow from call to call and are never reset. No
// function waits: advance() does what can be done now and returns.
#include "backends/shm/pipeline.h"

#include <algorithm>
#include <cstring>

#include "backends/shm/stream.h"

namespace lockstep::shm {
namespace {

bool reached(const Counter& counter, std::uint64_t value) {
  return counter.value.load(std::memory_order_acquire) >= value;
}

void publish(const Communicator& communicator, Counter& counter, std::uint64_t value) {
  counter.value.store(value, std::memory_order_release);
  communicator.ring();
}

}  // namespace

Pipeline::Pipeline(const Communicator& communicator, Plan plan, std::uint64_t start, std::uint64_t chunks,
                   std::size_t piece_bytes)
    : communicator_(communicator),
      plan_(std::move(plan)),
      start_(start),
      end_(start + chunks),
      piece_(piece_bytes),
      staged_(start),
      combined_(plan_.kernel != nullptr ? start : end_),
      taken_(start) {}

std::size_t Pipeline::piece_bytes(std::size_t portions) { return kStageBytes / portions / kLine * kLine; }

std::byte* Pipeline::portion(int rank, std::uint64_t chunk, std::size_t portion) const {
  return communicator_.control_block(rank).stages[chunk % kStages] + portion * piece_;
}

std::size_t Pipeline::piece_of(std::size_t bytes, std::uint64_t chunk) const {
  const std::size_t before = (chunk - start_) * piece_;
  return bytes > before ? std::min(piece_, bytes - before) : 0;
}

bool Pipeline::all_reached(Counter ControlBlock::*counter, std::uint64_t value) const {
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    if (rank != communicator_.rank() && !reached(communicator_.control_block(rank).*counter, value))
      return false;
  }
  return true;
}

bool Pipeline::advance() {
  while (try_stage() || try_combine() || try_take()) {
  }
  if (staged_ != end_ || combined_ != end_ || taken_ != end_) return false;
  // Calls without a reduction do not advance this counter.
  communicator_.own().combined.value.store(end_, std::memory_order_release);
  return true;
}

bool Pipeline::try_stage() {
  if (staged_ == end_) return false;
  // The buffer was last used kStages chunks ago; all ranks must be done with that chunk.
  if (staged_ + 1 > kStages && !all_reached(&ControlBlock::taken, staged_ + 1 - kStages)) return false;
  if (staged_ + 1 > taken_ + kStages) return false;
  for (std::size_t i = 0; i < plan_.stage.size(); ++i) {
    if (plan_.portions > 1 && i == static_cast<std::size_t>(communicator_.rank()))
      continue;  // no other rank reads it
    const auto bytes = piece_of(plan_.stage[i].bytes, staged_);
    if (bytes > 0) {
      std::memcpy(portion(communicator_.rank(), staged_, i),
                  plan_.stage[i].data + (staged_ - start_) * piece_, bytes);
    }
  }
  publish(communicator_, communicator_.own().staged, ++staged_);
  return true;
}

bool Pipeline::try_combine() {
  if (combined_ == end_ || combined_ >= staged_ || !all_reached(&ControlBlock::staged, combined_ + 1))
    return false;
  const auto own_portion = static_cast<std::size_t>(communicator_.rank());
  const std::size_t before = (combined_ - start_) * piece_;
  const std::size_t bytes = piece_of(plan_.own.bytes, combined_);
  if (bytes > 0) {
    std::vector<const void*> in;
    in.reserve(static_cast<std::size_t>(communicator_.size()));
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      in.push_back(rank == communicator_.rank() ? plan_.own.data + before
                                                : portion(rank, combined_, own_portion));
    }
    std::vector<void*> out;
    if (plan_.result.data != nullptr) out.push_back(plan_.result.data + before);
    if (plan_.share_result) out.push_back(portion(communicator_.rank(), combined_, own_portion));
    plan_.kernel(out.data(), static_cast<int>(out.size()), in.data(), communicator_.size(),
                 bytes / plan_.width);
  }
  publish(communicator_, communicator_.own().combined, ++combined_);
  return true;
}

bool Pipeline::try_take() {
  if (taken_ == end_ || taken_ >= staged_ || taken_ >= combined_) return false;
  const auto source_counter = plan_.share_result ? &ControlBlock::combined : &ControlBlock::staged;
  for (std::size_t from = 0; from < plan_.take.size(); ++from) {
    const auto rank = static_cast<int>(from);
    if (plan_.take[from].bytes == 0 || rank == communicator_.rank()) continue;
    if (!reached(communicator_.control_block(rank).*source_counter, taken_ + 1)) return false;
  }
  // With one portion per reader, this rank reads its own portion; of a shared result, the portion of the rank
  // that reduced it.
  const std::size_t own_portion = plan_.portions > 1 ? static_cast<std::size_t>(communicator_.rank()) : 0;
  for (std::size_t from = 0; from < plan_.take.size(); ++from) {
    const auto rank = static_cast<int>(from);
    const auto bytes = piece_of(plan_.take[from].bytes, taken_);
    if (bytes == 0 || rank == communicator_.rank()) continue;
    auto* const to = plan_.take[from].data + (taken_ - start_) * piece_;
    if (plan_.share_result) {
      std::memcpy(to, portion(rank, taken_, from), bytes);
    } else {
      copy_part(to, portion(rank, taken_, own_portion), bytes, plan_.take[from].bytes);
    }
  }
  publish(communicator_, communicator_.own().taken, ++taken_);
  return true;
}

std::vector<int> Pipeline::awaited() const {
  std::vector<int> behind;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    const auto& block = communicator_.control_block(rank);
    const bool level = reached(block.staged, staged_) && reached(block.taken, taken_) &&
                       (plan_.kernel == nullptr || reached(block.combined, combined_));
    if (rank != communicator_.rank() && !level) behind.push_back(rank);
  }
  return behind;
}

}  // namespace lockstep::shm
