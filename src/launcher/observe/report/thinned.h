// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::observe {

// The values of a series in bounded memory: all of them while there are at most `limit`, then each item stands for
// several values in a row, which Item::merge(later) joins.
template <class Item>
class Thinned {
 public:
  explicit Thinned(std::size_t limit) : limit_(limit) {}

  void add(Item item) {
    if (!items_.empty() && in_last_ < width_) {
      items_.back().merge(item);
      ++in_last_;
      return;
    }
    if (items_.size() == limit_) halve();
    items_.push_back(std::move(item));
    in_last_ = 1;
  }

  // Joins items until there are at most `limit`, from now on. REQUIRES `limit` of at least 2.
  void set_limit(std::size_t limit) {
    limit_ = limit;
    while (items_.size() > limit_) halve();
  }

  const std::vector<Item>& items() const { return items_; }
  // Values in each item; the last one may have fewer.
  std::size_t width() const { return width_; }

 private:
  void halve() {
    std::vector<Item> half;
    half.reserve(items_.size() / 2 + 1);
    for (std::size_t i = 0; i < items_.size(); i += 2) {
      half.push_back(std::move(items_[i]));
      if (i + 1 < items_.size()) half.back().merge(items_[i + 1]);
    }
    in_last_ = items_.size() % 2 == 0 ? width_ + in_last_ : in_last_;
    width_ *= 2;
    items_ = std::move(half);
  }

  std::vector<Item> items_;
  std::size_t limit_;
  std::size_t width_ = 1;
  std::size_t in_last_ = 0;
};

}  // namespace lockstep::observe
