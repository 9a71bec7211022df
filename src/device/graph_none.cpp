// SPDX-License-Identifier: BSD-3-Clause
// Where LibTorch has no CUDA.
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_device.h>

namespace lockstep {

std::shared_ptr<GraphDevice> make_graph_device(c10::Device device) {
  throw ArgumentError(fmt::format(
      "GraphedStep: graphs need a GPU, and a LibTorch that was built with CUDA, which this one was "
      "not; {} has none. Give .enabled = false to run every step eagerly",
      device.str()));
}

}  // namespace lockstep
