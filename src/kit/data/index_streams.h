// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <lockstep/data/sampler.h>

// The passes of samplers: streams of indices, and their batches.
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

// Concatenates the contiguous tensors that `draw` returns, up to an undefined tensor.
class DrawnStream : public IndexStream {
 public:
  explicit DrawnStream(std::function<at::Tensor()> draw) : draw_(std::move(draw)) {}

  std::int64_t read(std::span<std::int64_t> out) override {
    std::size_t written = 0;
    while (written < out.size() && refill()) {
      const auto count = std::min(out.size() - written, static_cast<std::size_t>(part_.numel() - used_));
      std::copy_n(part_.const_data_ptr<std::int64_t>() + used_, count,
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

  std::function<at::Tensor()> draw_;
  at::Tensor part_;
  std::int64_t used_ = 0;
  bool ended_ = false;
};

// The indices of one draw, which happens at the first read, as in Python.
template <typename Draw>
std::unique_ptr<IndexStream> draw_once(Draw draw) {
  return std::make_unique<DrawnStream>([draw = std::move(draw), drawn = false]() mutable {
    return std::exchange(drawn, true) ? at::Tensor() : draw();
  });
}

class BatchedStream : public BatchStream {
 public:
  BatchedStream(std::unique_ptr<IndexStream> indices, std::int64_t batch_size, bool drop_last)
      : indices_(std::move(indices)), batch_size_(batch_size), drop_last_(drop_last) {}

  at::Tensor next() override {
    if (ended_) return {};
    auto batch = at::empty({batch_size_}, at::kLong);
    const auto count =
        indices_->read({batch.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(batch_size_)});
    ended_ = count < batch_size_;
    if (!ended_) return batch;
    if (count == 0 || drop_last_) return {};
    return batch.narrow(0, 0, count);
  }

 private:
  std::unique_ptr<IndexStream> indices_;
  std::int64_t batch_size_;
  bool drop_last_;
  bool ended_ = false;
};

}  // namespace lockstep::data
