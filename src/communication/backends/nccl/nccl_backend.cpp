// SPDX-License-Identifier: BSD-3-Clause
// Compiled if LibTorch has CUDA and NCCL.
#include "backends/nccl/nccl_backend.h"

#include <algorithm>
#include <functional>
#include <future>
#include <thread>

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <fmt/format.h>

#include <lockstep/device/device.h>

#include "backends/factories.h"
#include "base/deadline.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "comm/from_c10d.h"
#include "comm/stream_watch.h"
#include "comm/to_c10d.h"
#include "node/node_group.h"

namespace lockstep::backends {
namespace {

// The work on the current stream at construction.
class StreamMark : public c10d::Work {
 public:
  StreamMark() { event_.record(); }
  bool isCompleted() override { return event_.query(); }

 private:
  at::cuda::CUDAEvent event_;
};

// c10d's own limit only has to come after Lockstep's, whose error has more details.
constexpr auto kAfterOurs = std::chrono::minutes(10);
constexpr auto kConnectPollPeriod = std::chrono::milliseconds(50);
constexpr auto kLongest = std::chrono::hours(24 * 365);

void set_config(ncclConfig_t& config, const NcclOptions& wanted) {
  if (wanted.nonblocking) config.blocking = *wanted.nonblocking ? 0 : 1;
  if (wanted.min_ctas) config.minCTAs = *wanted.min_ctas;
  if (wanted.max_ctas) config.maxCTAs = *wanted.max_ctas;
  if (wanted.cga_cluster_size) config.cgaClusterSize = *wanted.cga_cluster_size;
  // Never freed here: NCCL keeps the pointer, and some versions free it.
  if (!wanted.net_name.empty()) config.netName = ::strdup(wanted.net_name.c_str());
}

c10::intrusive_ptr<NcclGroupOptions> options_of(const BackendRequest& request) {
  auto options = NcclGroupOptions::create(request.nccl.high_priority_stream);
  options->timeout = std::min<std::chrono::milliseconds>(request.timeout, kLongest) + kAfterOurs;
  options->group_name = request.python.only_c10d_keys ? request.python.group_name : request.group_name;
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

// Throws the failure of `action`, at the latest at the timeout: NCCL itself waits without a limit for a rank
// that died.
void run_in_time(const c10::Device& device, std::chrono::milliseconds timeout, node::NodeGroup* others,
                 std::function<void()> action) {
  std::packaged_task<void()> task([device, action = std::move(action)] {
    set_device(device);
    action();
  });
  auto done = task.get_future();
  auto running = start_thread<std::thread>("the connection of NCCL", std::move(task));
  const Deadline deadline(timeout);
  int dead = -1;
  while (done.wait_for(kConnectPollPeriod) != std::future_status::ready && !deadline.expired() && dead < 0) {
    dead = others != nullptr ? others->find_dead() : -1;
  }
  if (done.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    running.join();
    return done.get();
  }
  running.detach();  // the action holds what it uses, and nothing else ends its wait
  if (dead >= 0) throw RendezvousError(others->name_of(dead) + " died", others->details_of({dead}));
  throw_error<RendezvousError>("not connected after {} ms", timeout.count());
}

[[noreturn]] void throw_not_connected(const std::exception& error, const BackendRequest& request) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  const bool may_differ = request.python.only_c10d_keys && libtorch::is_at_least(2, 14);
  throw_error<RendezvousError>(
      request.reporter(), request.about(ours != nullptr ? ours->ranks() : std::vector<int>()),
      "NCCL could not connect the ranks of group {} on {}: {}. {}Set NCCL_DEBUG=INFO for details",
      request.group_name, request.device.str(), first_line_of(error.what()),
      may_differ ? "TORCH_DIST_USE_NCCL2 must be the same for C++ and Python ranks. " : "");
}

// The calls of a process group of this class.
template <typename Group>
class NcclStreams : public comm::StreamBackend {
 public:
  explicit NcclStreams(bool waits_on_host) : waits_on_host_(waits_on_host) {}

  bool ends_on_stream(const c10d::Work& work) const override { return Group::issued(work); }

  NcclWorkPtr observer_of(const NcclWorkPtr& work) const override {
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) return {};
    return Group::observer_of(work);
  }

  void free_tensors(c10d::Work& work) const override { Group::free_tensors(work); }
  bool waits_on_host() const override { return waits_on_host_; }
  NcclWorkPtr mark_stream() const override { return c10::make_intrusive<StreamMark>(); }

  // Event queries must not abort a capture of another thread.
  void prepare_observing_thread() const override {
    auto mode = cudaStreamCaptureModeRelaxed;
    C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  }

 private:
  bool waits_on_host_;
};

// A group that Group::split() made.
template <typename Group>
class NcclPart final : public comm::FromC10d, public NcclStreams<Group> {
 public:
  NcclPart(c10::intrusive_ptr<c10d::Backend> part, bool waits_on_host, std::chrono::milliseconds timeout)
      : FromC10d(part->getRank(), part->getSize(), "nccl", nccl_traits(), timeout),
        NcclStreams<Group>(waits_on_host),
        part_(std::move(part)),
        calls_(comm::calls_of(part_, nccl_traits())) {}

  const std::string getBackendName() const override { return "nccl"; }
  void abort() override { part_->abort(); }
  void shutdown() override { part_->shutdown(); }
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return part_->supportsTensorAlloc(index); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return part_->allocateTensor(size, options);
  }
  comm::OperationPtr start(const comm::Call& call, comm::Report report) override {
    return calls_->start(call, report);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> part_;
  std::shared_ptr<comm::CallBackend> calls_;
};

template <typename Group>
class NcclBackend final : public Group, public NcclStreams<Group> {
 public:
  NcclBackend(const BackendRequest& request, c10::intrusive_ptr<NcclGroupOptions> options)
      : Group(request, std::move(options)),
        NcclStreams<Group>(*request.nccl.blocking_wait),
        request_(request) {}

  // All ranks call it, those outside of `ranks` without ranks; these get nothing. Only the name and the
  // timeout of the options count. PyTorch: `new_group()` and `perform_nocolor_split()`.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override {
    auto request = request_;
    request.timeout = options->timeout;
    request.group_name = request.python.group_name = options->group_name;
    auto part = std::make_shared<c10::intrusive_ptr<c10d::Backend>>();
    const auto self = c10::intrusive_ptr<NcclBackend>::unsafe_reclaim_from_nonowning(this);
    try {
      [[maybe_unused]] const typename Group::Environment environment;
      run_in_time(request.device, request.timeout, nullptr,
                  [=, own = options_of(request)] { *part = self->Group::split(store, ranks, own); });
    } catch (const std::exception& error) {
      throw_not_connected(error, request);
    }
    if (*part == nullptr) return {};
    return c10::make_intrusive<NcclPart<Group>>(std::move(*part), this->waits_on_host(), request.timeout);
  }

 private:
  BackendRequest request_;
};

template <typename Group>
BackendHandle connect(const BackendRequest& request) {
  const auto backend = [&]() -> c10::intrusive_ptr<c10d::Backend> {
    [[maybe_unused]] const typename Group::Environment environment;
    return c10::make_intrusive<NcclBackend<Group>>(request, options_of(request));
  }();
  const bool alone = request.size == 1 || !request.one_host || request.python.only_c10d_keys;
  auto others = alone ? nullptr : join_node_group(request, {});
  // Creates the communicators here, where all ranks wait for each other anyway, and not in the first
  // backward. Python's ranks may wait for each other in their first call.
  if (!request.python.only_c10d_keys || Group::kPythonConnectsAtOnce) {
    run_in_time(request.device, request.timeout, others.get(),
                [backend, device = request.device] { backend->eagerConnectSingleDevice(device); });
  }
  return {.backend = backend, .traits = nccl_traits(), .node_group = std::move(others)};
}

}  // namespace

BackendHandle create_nccl(const BackendRequest& wanted) {
  auto request = wanted;
  auto& waits = request.nccl.blocking_wait;
  waits = waits.value_or(c10d::getCvarBool(c10d::TORCH_NCCL_BLOCKING_WAIT, false));
  try {
    return libtorch::python_uses_nccl2(request.env) ? connect<Nccl2>(request) : connect<Nccl1>(request);
  } catch (const std::exception& error) {
    throw_not_connected(error, request);
  }
}

}  // namespace lockstep::backends
