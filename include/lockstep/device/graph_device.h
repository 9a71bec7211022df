// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace lockstep {

/// Work of a device that was recorded once and can be done again. PyTorch: `torch.cuda.CUDAGraph`.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Queues the work on the current stream.
  virtual void replay() = 0;
};

/// How the work of a device is recorded. GraphedStep takes that of CUDA; derive from it for another kind of
/// device.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;

  /// Runs `work` with a stream of its own as the current one: what it queues comes after what the caller's
  /// stream holds, and what the caller queues later comes after it.
  virtual void run_aside(const std::function<void()>& work) = 0;

  /// Runs `work` on that stream without doing what it queues, and returns that. All graphs of this object
  /// share a memory pool, which is theirs alone. `generators`: those besides the device's default one that
  /// `work` draws from. When `work` throws, or something in it could not be recorded, the recording is
  /// dropped and the exception passed on.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                              const std::vector<at::Generator>& generators) = 0;
};

/// That of a GPU. Throws ArgumentError for the CPU, for kinds of devices that have no graphs here, and where
/// LibTorch has no CUDA.
std::shared_ptr<GraphDevice> make_graph_device(c10::Device device);

}  // namespace lockstep
