// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include "ddp/ddp_state.h"
#include "ddp/packed_tensors.h"
#include "ddp/verdict.h"

namespace lockstep::ddp {

// Note [Verified steps]
//
//     all ranks   compare checksums of parameters and optimizer states; buffers of rank 0 to all
//     subject r   keeps generators, buffers, gradients and batch ---> forward, backward: a checksum of each gradient
//                 in its bucket, before the reduction of the bucket starts
//     r + 1       gets what r has kept ---> forward, backward, without reductions ---> a checksum of each gradient,
//                 divided as r has divided it ---> its own generators, buffers and gradients again
//     all ranks   all-gather the checksums: equal, or r + 2 does what r + 1 did, and so on until two agree
//
// With all_ranks each rank is a subject, and each computes for its neighbour at the same time.

Checksums checksums_of(const std::vector<at::Tensor>& tensors);

// A forward and backward on this rank that can be computed again on another.
class VerifiedPass {
 public:
  // The arguments outlive it.
  VerifiedPass(const torch::nn::Module& module, DdpState& state,
               const std::vector<at::Generator>& generators);

  // Runs `pass`. On a rank that is verified, `batch` is given: keeps what the pass begins with, and returns the
  // checksums of the gradients that it makes on this rank. Throws ArgumentError on all ranks after a pass with several
  // reduced backwards.
  Checksums run(const std::optional<std::vector<at::Tensor>>& batch, const std::function<void()>& pass);
  // What run() has begun with, and how it has divided.
  PackedTensors packed() const;

  // Runs `pass` in place of the rank whose packed() this is, with its batch on the devices of `like`, and returns the
  // checksums that its run() must have returned. Gradients, buffers and generators of this rank stay.
  using Replay = std::function<void(const std::vector<at::Tensor>& batch)>;
  Checksums replay(const PackedTensors& packed, const std::vector<at::Tensor>& like, const Replay& pass);

 private:
  std::vector<at::Tensor> generator_states() const;
  void set_generator_states(const std::vector<at::Tensor>& states) const;
  std::vector<at::Tensor> gradients() const;
  void keep(const std::vector<at::Tensor>& batch);
  Checksums replay_from(const std::vector<at::Tensor>& gradients, const std::vector<Division>& divisions,
                        const std::function<void()>& pass);

  DdpState& state_;
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<Division> divisions_;  // [parameter] in run()
  PackedTensors kept_;
};

}  // namespace lockstep::ddp
