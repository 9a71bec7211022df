// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <lockstep/data/sampler.h>

namespace lockstep::data {

// `first`, `first + step`, ... below `end`.
class StridedStream : public IndexStream {
 public:
  StridedStream(std::int64_t first, std::int64_t step, std::int64_t end)
      : next_(first), step_(step), end_(end) {}

  std::int64_t read(std::span<std::int64_t> out) override {
    std::int64_t count = 0;
    for (auto& index : out) {
      if (next_ >= end_) break;
      index = next_;
      next_ += step_;
      ++count;
    }
    return count;
  }

 private:
  std::int64_t next_;
  std::int64_t step_;
  std::int64_t end_;
};

// Concatenates the contiguous tensors that `Draw::operator()` returns, up to an undefined tensor.
template <typename Draw>
class DrawnStream : public IndexStream {
 public:
  explicit DrawnStream(Draw draw) : draw_(std::move(draw)) {}

  std::int64_t read(std::span<std::int64_t> out) override {
    std::size_t written = 0;
    while (written < out.size() && refill()) {
      const auto count = std::min(out.size() - written, static_cast<std::size_t>(part_.numel() - used_));
      std::copy_n(part_.template const_data_ptr<std::int64_t>() + used_, count,
                  out.begin() + static_cast<std::ptrdiff_t>(written));
      used_ += static_cast<std::int64_t>(count);
      written += count;
    }
    return static_cast<std::int64_t>(written);
  }

 private:
  bool refill() {
    while (!ended_ && (!part_.defined() || used_ == part_.numel())) {
      part_ = draw_();
      used_ = 0;
      ended_ = !part_.defined();
    }
    return !ended_;
  }

  Draw draw_;
  at::Tensor part_;
  std::int64_t used_ = 0;
  bool ended_ = false;
};

}  // namespace lockstep::data
