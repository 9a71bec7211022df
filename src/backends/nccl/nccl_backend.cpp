// SPDX-License-Identifier: BSD-3-Clause
// The only file that includes NCCL's header; compiled if LibTorch has CUDA and NCCL.
#include <algorithm>
#include <future>
#include <thread>

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <lockstep/base/env.h>
#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

#include "backends/factories.h"
#include "backends/join_node_group.h"
#include "base/deadline.h"
#include "comm/stream_watch.h"
#include "device/libtorch_versions.h"
#include "node/node_group.h"

namespace lockstep::backends {
namespace {

using Nccl = c10d::ProcessGroupNCCL;

// The work on the current stream at construction.
class StreamMark : public c10d::Work {
 public:
  StreamMark() { event_.record(); }
  bool isCompleted() override { return event_.query(); }

 private:
  at::cuda::CUDAEvent event_;
};

class NcclBackend final : public Nccl, public comm::StreamBackend {
 public:
  NcclBackend(const BackendRequest& request, c10::intrusive_ptr<Options> options)
      : Nccl(request.store, request.rank, request.size, std::move(options)),
        net_name_(request.nccl.net_name) {
    // c10d would end the process at the first failure; Lockstep aborts the communicators and throws.
    asyncErrorHandling_ = c10d::NoHandling;
    if (request.nccl.blocking_wait) blockingWait_ = *request.nccl.blocking_wait;
    if (!net_name_.empty()) getOptions()->config.netName = net_name_.c_str();
  }

  bool ends_on_stream(const c10d::Work& work) const override {
    return dynamic_cast<const WorkNCCL*>(&work) != nullptr;
  }

  c10::intrusive_ptr<c10d::Work> observer_of(const c10::intrusive_ptr<c10d::Work>& work) const override {
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return {};
    // The copy holds no outputs.
    return c10::make_intrusive<WorkNCCL>(dynamic_cast<const WorkNCCL&>(*work));
  }

  c10::intrusive_ptr<c10d::Work> mark_stream() const override { return c10::make_intrusive<StreamMark>(); }

  // Event queries must not abort a capture of another thread.
  void prepare_observing_thread() const override {
    auto mode = cudaStreamCaptureModeRelaxed;
    C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  }

 private:
  std::string net_name_;  // NCCL keeps a pointer
};

// c10d's own limit only has to come after Lockstep's, whose error has more details.
constexpr auto kAfterOurs = std::chrono::minutes(10);
constexpr auto kConnectLook = std::chrono::milliseconds(50);
constexpr auto kLongest = std::chrono::hours(24 * 365);

void set_config(ncclConfig_t& config, const NcclOptions& wanted) {
  if (wanted.nonblocking) config.blocking = *wanted.nonblocking ? 0 : 1;
  if (wanted.min_ctas) config.minCTAs = *wanted.min_ctas;
  if (wanted.max_ctas) config.maxCTAs = *wanted.max_ctas;
  if (wanted.cga_cluster_size) config.cgaClusterSize = *wanted.cga_cluster_size;
}

c10::intrusive_ptr<Nccl::Options> options_of(const BackendRequest& request) {
  auto options = Nccl::Options::create(request.nccl.high_priority_stream);
  options->timeout = std::min<std::chrono::milliseconds>(request.timeout, kLongest) + kAfterOurs;
  options->group_name = request.group_name;
  set_config(options->config, request.nccl);
  return options;
}

BackendTraits nccl_traits() {
  using c10::ScalarType;
  return {.devices = {c10::DeviceType::CUDA},
          .dtypes = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16,
                     ScalarType::Char, ScalarType::Byte, ScalarType::Bool, ScalarType::Int, ScalarType::Long},
          .averages = true,
          .device_advice = "move it to the GPU, or leave the backend at \"auto\", which has one for each"};
}

// Throws the failure, at the latest at the timeout: NCCL itself waits without a limit for a rank that died.
void connect_in_time(const c10::intrusive_ptr<NcclBackend>& backend, const BackendRequest& request,
                     const std::shared_ptr<node::NodeGroup>& others) {
  std::packaged_task<void()> task([backend, device = request.device] {
    set_device(device);
    backend->eagerConnectSingleDevice(device);
  });
  auto connected = task.get_future();
  std::thread connecting(std::move(task));
  const Deadline deadline(request.timeout);
  int dead = -1;
  while (connected.wait_for(kConnectLook) != std::future_status::ready && !deadline.expired() && dead < 0) {
    dead = others ? others->find_dead() : -1;
  }
  if (connected.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    connecting.join();
    return connected.get();
  }
  connecting.detach();  // it holds the backend, and nothing else ends its wait
  throw RendezvousError(dead < 0 ? fmt::format("not connected after {} ms", request.timeout.count())
                                 : others->name_of(dead) + " died");
}

}  // namespace

BackendHandle create_nccl(const BackendRequest& request) {
  const auto device = request.device;
  if (request.only_c10d_keys && libtorch::python_uses_nccl2(Env())) {
    throw ArgumentError(fmt::format(
        "rank {} of {}: C++ ranks cannot meet Python's over the nccl that this release of PyTorch takes: set "
        "TORCH_DIST_USE_NCCL2=0 for all ranks of the job",
        request.rank, request.size));
  }
  try {
    auto backend = c10::make_intrusive<NcclBackend>(request, options_of(request));
    // Python's ranks connect in their first call.
    if (request.only_c10d_keys) return {.backend = std::move(backend), .traits = nccl_traits()};
    auto others = request.one_host && request.size > 1 ? join_node_group(request, {}) : nullptr;
    // Creates the communicators here, where all ranks wait for each other anyway, and not in the first
    // backward.
    connect_in_time(backend, request, others);
    return {.backend = std::move(backend), .traits = nccl_traits(), .node_group = std::move(others)};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(fmt::format(
        "rank {} of {}: NCCL could not connect the ranks of group {} on {}: {}. Set NCCL_DEBUG=INFO for "
        "details",
        request.rank, request.size, request.group_name, device.str(), text.substr(0, text.find('\n'))));
  }
}

}  // namespace lockstep::backends
