// SPDX-License-Identifier: BSD-3-Clause
// Replaces graph_cuda.cpp in builds without CUDA.

#include <lockstep/graphs/graphed_step.h>

#include "base/throw_error.h"

namespace lockstep {

std::shared_ptr<GraphDevice> make_graph_device(c10::Device device) {
  throw_error<ArgumentError>(
      "GraphedStep: graphs need a GPU and a LibTorch with CUDA; {} has no graphs in this build. Set .enabled "
      "= false to run every step eagerly",
      device.str());
}

}  // namespace lockstep
