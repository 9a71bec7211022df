// SPDX-License-Identifier: BSD-3-Clause
// CUDA graphs. The only file of this layer that needs CUDA's headers, where they are present.
#include <lockstep/graphs/graphed_step.h>

#include "base/throw_error.h"

#ifdef LOCKSTEP_HAS_CUDA
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <lockstep/device/device.h>

#include "device/libtorch_versions.h"

namespace lockstep {
namespace {

template <typename End>
bool succeeds(const End& end) {
  try {
    end();
    return true;
  } catch (const c10::Error&) {
    return false;  // not started, or ended already
  }
}

class Recording : public at::cuda::CUDAGraph {
 public:
  // LibTorch leaves generators and the device's and host's allocators in the capture state after a failure.
  void clean_up_failed_capture(c10::DeviceIndex device, c10::MempoolId_t pool) {
    for (const auto& [state, increment] : captured_generator_states_) libtorch::leave_capture(*state);
    if (capture_ended_) return;
    libtorch::leave_pool(*this);
    auto& host = *at::getHostAllocator(c10::kCUDA);
    const bool served = succeeds([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool); });
    const bool pinned = succeeds([&] { host.end_allocate_to_pool(pool); });
    if (served) c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    if (pinned) host.release_pool(pool);
  }
};

// LibTorch's allocators reject a pool without graphs, so its lifetime is that of its graphs.
using Pool = std::shared_ptr<const c10::MempoolId_t>;

class CudaGraph : public DeviceGraph {
 public:
  CudaGraph(c10::DeviceIndex device, Pool pool) : device_(device), pool_(std::move(pool)) {}
  // A running replay still uses the memory that the graph frees.
  ~CudaGraph() override {
    try {
      replayed_.synchronize();
    } catch (const c10::Error&) {
      return;  // CUDA reports it again at the next call
    }
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  Recording& graph() { return graph_; }
  void replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
    replayed_.record();
  }

 private:
  c10::DeviceIndex device_;
  Pool pool_;
  at::cuda::CUDAEvent replayed_;
  Recording graph_;
};

// Makes `second` wait for the work queued on `first`.
void wait_stream(const c10::cuda::CUDAStream& second, const c10::cuda::CUDAStream& first) {
  at::cuda::CUDAEvent event;
  event.record(first);
  event.block(second);
}

class CudaGraphDevice : public GraphDevice {
 public:
  explicit CudaGraphDevice(c10::DeviceIndex device)
      : device_(device), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)) {}

  void run_on_side_stream(const std::function<void()>& work) override {
    const auto callers = c10::cuda::getCurrentCUDAStream(device_);
    wait_stream(stream_, callers);
    const auto rejoin = [&] { wait_stream(callers, stream_); };
    try {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      work();
    } catch (...) {
      rejoin();
      throw;
    }
    rejoin();
  }

  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                      const std::vector<at::Generator>& generators) override {
    const auto pool = shared_pool();
    auto recorded = std::make_unique<CudaGraph>(device_, pool);
    auto& graph = recorded->graph();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    c10::cuda::device_synchronize();
    // A recording cannot use the memory that the eager calls left in the cache. PyTorch: `torch.cuda.graph`
    // does it, too.
    c10::cuda::CUDACachingAllocator::emptyCache();
    for (const auto& generator : generators) libtorch::register_generator(graph, generator);
    // Thread-local: other threads may use the device, for example a loader and NCCL's watchdog.
    try {
      graph.capture_begin(*pool, cudaStreamCaptureModeThreadLocal);
    } catch (...) {
      graph.clean_up_failed_capture(device_, *pool);
      throw;
    }
    try {
      work();
    } catch (...) {
      abort_capture(graph, *pool);
      throw;
    }
    try {
      graph.capture_end();
    } catch (const c10::Error& error) {
      graph.clean_up_failed_capture(device_, *pool);
      throw_error<Error>("GraphedStep: the device could not record the step: {}",
                         error.what_without_backtrace());
    }
    return recorded;
  }

 private:
  Pool shared_pool() {
    auto pool = pool_.lock();
    if (!pool) pool = std::make_shared<const c10::MempoolId_t>(at::cuda::graph_pool_handle());
    pool_ = pool;
    return pool;
  }

  // Ignores a second error about a capture that is already invalid.
  void abort_capture(Recording& graph, c10::MempoolId_t pool) {
    try {
      graph.capture_end();
    } catch (const c10::Error&) {
      graph.clean_up_failed_capture(device_, pool);
    }
  }

  c10::DeviceIndex device_;
  c10::cuda::CUDAStream stream_;
  std::weak_ptr<const c10::MempoolId_t> pool_;
};

}  // namespace

std::shared_ptr<GraphDevice> make_graph_device(c10::Device device) {
  if (!device.is_cuda()) {
    throw_error<ArgumentError>(
        "GraphedStep: graphs need a GPU; {} has none. Set .enabled = false to run every step eagerly",
        device.str());
  }
  if (device_count(c10::kCUDA) == 0) {
    throw_error<ArgumentError>(
        "GraphedStep: {}: this process cannot use any GPU. Set .enabled = false to run every step eagerly",
        device.str());
  }
  return std::make_shared<CudaGraphDevice>(device.has_index() ? device.index() : c10::cuda::current_device());
}

}  // namespace lockstep

#else

namespace lockstep {

std::shared_ptr<GraphDevice> make_graph_device(c10::Device device) {
  throw_error<ArgumentError>(
      "GraphedStep: graphs need a GPU and a LibTorch with CUDA; {} has no graphs in this build. Set .enabled "
      "= false to run every step eagerly",
      device.str());
}

}  // namespace lockstep

#endif
