// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace lockstep::device {

// The cache lines that a loop over objects reads, in groups, one for each turn of the loop. The objects lie
// apart, and a training step has evicted them; fetched ahead, they arrive together.
class ColdLines {
 public:
  // Lines of the next group. A line that an earlier group has is left out.
  void add(const void* begin, std::size_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(begin) / kLine;
    const auto last = (reinterpret_cast<std::uintptr_t>(begin) + bytes - 1) / kLine;
    for (auto line = first; line <= last; ++line)
      if (known_.insert(line).second) lines_.push_back(reinterpret_cast<const void*>(line * kLine));
  }
  void end_group() { ends_.push_back(static_cast<std::uint32_t>(lines_.size())); }

  // Fetches lines while a loop goes through the groups. It may outlive the objects: fetching never fails.
  class Walk {
   public:
    explicit Walk(const ColdLines& lines) : lines_(lines) {}
    // To be called before turn `group`, in order from 0.
    void enter(std::size_t group) {
      const auto end = lines_.ends_[group] + kAhead;
      for (; next_ < end && next_ < lines_.lines_.size(); ++next_) __builtin_prefetch(lines_.lines_[next_]);
    }

   private:
    // More than a core's outstanding reads, of which there are 10 to 16.
    static constexpr std::size_t kAhead = 24;
    const ColdLines& lines_;
    std::size_t next_ = 0;
  };

 private:
  static constexpr std::uintptr_t kLine = 64;
  std::vector<const void*> lines_;
  std::vector<std::uint32_t> ends_;
  std::unordered_set<std::uintptr_t> known_;
};

}  // namespace lockstep::device
