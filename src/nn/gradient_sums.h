// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// The gradients of several replicas, summed in the replicas' order as they come: who comes last adds, while
// its own is still in the cache. Safe from any thread.
class GradientSums {
 public:
  GradientSums(std::size_t parameters, std::size_t replicas);

  // A gradient of a parameter; a replica may bring several of one.
  void add(std::size_t replica, std::size_t parameter, at::Tensor gradient);
  // Once all have come: [i] is the sum of parameter i, undefined where no replica had one.
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
