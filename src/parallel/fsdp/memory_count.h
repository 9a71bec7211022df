// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <unordered_map>

#include <ATen/core/Tensor.h>

namespace lockstep::fsdp {

// Memory of tensors, each storage once.
class Storages {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_meta() || !tensor.has_storage()) return;
    const auto& storage = tensor.storage();
    bytes_[storage.data()] = static_cast<std::int64_t>(storage.nbytes());
  }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [start, bytes] : bytes_) sum += bytes;
    return sum;
  }
  // By the start of the memory.
  const std::unordered_map<const void*, std::int64_t>& all() const { return bytes_; }

 private:
  std::unordered_map<const void*, std::int64_t> bytes_;
};

// What a rank has, by category.
struct MemoryCount {
  Storages parameters = {};
  Storages gradients = {};
  Storages gathered = {};
  std::int64_t shared = 0;            // parameters that ranks share: this rank's equal part
  std::int64_t owned = 0;             // those that count on this rank and on no other one of the host
  std::int64_t gathered_on_host = 0;  // parameters that ranks gathered together: this rank's equal part
};

}  // namespace lockstep::fsdp
