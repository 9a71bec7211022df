// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "backends/shm/engine.h"
#include "base/shared_memory.h"

namespace lockstep::shm {

// The ranks of a group as threads that share the very same mappings, so that a sanitizer sees both sides of
// every access.
class ThreadTeam {
 public:
  static constexpr std::size_t kHeapBytes = std::size_t{8} << 20U;

  explicit ThreadTeam(int size) {
    for (int rank = 0; rank < size; ++rank) {
      segments_.push_back(SharedMemory::create("test", Layout(size).bytes()));
      heaps_.push_back(SharedMemory::create("test", kHeapBytes));
    }
  }

  Communicator communicator(int rank, RankObserver news = {}) const {
    std::vector<std::byte*> segments, heaps;
    for (const auto& segment : segments_) segments.push_back(segment.data());
    for (const auto& heap : heaps_) heaps.push_back(heap.data());
    return {rank, std::move(segments), std::move(heaps), kHeapBytes, std::move(news)};
  }

  // Runs `body` as every rank and rethrows the exception of one of them.
  void run(const WaitPolicy& wait_policy, const std::function<void(Engine&)>& body) const {
    std::vector<std::exception_ptr> failures(segments_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < segments_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Engine engine(communicator(static_cast<int>(rank)), wait_policy);
        try {
          body(engine);
        } catch (...) {
          failures[rank] = std::current_exception();
          engine.abort();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  std::vector<SharedMemory> segments_;
  std::vector<SharedMemory> heaps_;
};

}  // namespace lockstep::shm
