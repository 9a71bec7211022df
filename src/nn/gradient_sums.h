// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// Sums the gradients of several replicas in the replicas' order, as they arrive: the thread that completes
// the sum adds, while its own gradient is still in the cache. Safe from any thread.
class GradientSums {
 public:
  GradientSums(std::size_t parameters, std::size_t replicas);

  // Adds a gradient. A replica may add several for one parameter.
  void add(std::size_t replica, std::size_t parameter, at::Tensor gradient);
  // After the last add(): [i] is the sum of parameter i, undefined if no replica had a gradient.
  std::vector<at::Tensor> take();

 private:
  struct Slot {
    std::mutex mutex;
    std::size_t next = 0;             // the replica that is added next
    at::Tensor sum;                   // of those before it
    std::vector<at::Tensor> waiting;  // of those from it on
  };
  static void add_next(Slot& slot);

  std::size_t replicas_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::nn
