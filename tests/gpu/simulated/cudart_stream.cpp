// SPDX-License-Identifier: BSD-3-Clause
// CUDA's runtime interface: streams, events, capture, graphs.
#include <cstdio>
#include <cuda_runtime_api.h>

#include "capture.h"
#include "devices.h"
#include "memory.h"
#include "result.h"
#include "simulated.h"

using namespace lockstep::simulated;

namespace {

// Handles of events may be used by several threads.
struct EventHandle {
  std::mutex mutex;
  Event event;
};

EventHandle& event_of(cudaEvent_t handle) { return *reinterpret_cast<EventHandle*>(handle); }
Event copy_of(cudaEvent_t handle) {
  auto& event = event_of(handle);
  const std::lock_guard lock(event.mutex);
  return event.event;
}

using SharedGraph = std::shared_ptr<Graph>;

SharedGraph& graph_of(cudaGraph_t handle) { return *reinterpret_cast<SharedGraph*>(handle); }
SharedGraph& graph_of(cudaGraphExec_t handle) { return *reinterpret_cast<SharedGraph*>(handle); }

Work as_kernel(Work work) {
  return [work = std::move(work)] {
    if (device_failure() != cudaSuccess) return;
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "simulated GPU: a kernel failed: %s\n", error.what());
      device_failure() = cudaErrorAssert;
    }
  };
}

}  // namespace

extern "C" {

cudaError_t lockstep_simulated_launch(cudaStream_t stream, const std::function<void()>& work) {
  if (stream_of(stream).device() != current_device()) return report(cudaErrorInvalidResourceHandle);
  return report(Captures::instance().submit(stream_of(stream), as_kernel(work)));
}

void* lockstep_simulated_bytes(const void* address) { return Memory::bytes_of(address); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
  auto* stream = new Stream(current_device(), priority);
  auto& device = devices().at(static_cast<std::size_t>(current_device()));
  const std::lock_guard lock(device.mutex);
  device.streams.push_back(stream);
  *handle = reinterpret_cast<cudaStream_t>(stream);
  return report(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

// Its thread may still be at work, and stays.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  auto& stream = stream_of(handle);
  if (Captures::instance().is_capturing(stream)) return report(cudaErrorStreamCaptureUnsupported);
  auto& device = devices().at(static_cast<std::size_t>(stream.device()));
  const std::lock_guard lock(device.mutex);
  std::erase(device.streams, &stream);
  return report(cudaSuccess);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  *priority = stream_of(handle).priority();
  return report(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  auto& stream = stream_of(handle);
  if (const auto refused = Captures::instance().check_wait(&stream, 0)) return report(refused);
  if (device_failure() != cudaSuccess) return report(device_failure());
  return stream.idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  auto& stream = stream_of(handle);
  if (const auto refused = Captures::instance().check_wait(&stream, 0)) return report(refused);
  stream.mark()->wait();
  return report(device_failure());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return report(Captures::instance().wait(stream_of(handle), copy_of(event)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return report(Captures::instance().submit(stream_of(handle), [=] { function(data); }));
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data, unsigned) {
  return report(Captures::instance().submit(stream_of(handle), [=] { callback(handle, cudaSuccess, data); }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  *handle = reinterpret_cast<cudaEvent_t>(new EventHandle);
  return report(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  delete &event_of(handle);
  return report(cudaSuccess);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  auto& event = event_of(handle);
  const std::lock_guard lock(event.mutex);
  return report(Captures::instance().record(event.event, stream_of(stream)));
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return cudaEventRecordWithFlags(handle, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  const auto event = copy_of(handle);
  if (event.capture) return report(cudaErrorCapturedEvent);
  if (device_failure() != cudaSuccess) return report(device_failure());
  return !event.fence || event.fence->reached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  if (const auto refused = Captures::instance().check_unsafe()) return report(refused);
  const auto event = copy_of(handle);
  if (event.capture) return report(cudaErrorCapturedEvent);
  if (event.fence) event.fence->wait();
  return report(device_failure());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto begin = copy_of(from), end = copy_of(to);
  if (!begin.fence || !end.fence) return report(cudaErrorInvalidValue);
  if (!begin.fence->reached() || !end.fence->reached()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end.fence->when() - begin.fence->when()).count();
  return report(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode_of_thread());
  return report(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 1) return report(cudaErrorStreamCaptureUnsupported);
  return report(Captures::instance().begin(stream_of(handle), mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  SharedGraph made;
  const auto result = Captures::instance().end(stream_of(handle), made);
  if (made) *graph = reinterpret_cast<cudaGraph_t>(new SharedGraph(std::move(made)));
  return report(result);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  unsigned long long number = 0;
  void* made = nullptr;
  *status = Captures::instance().status(stream_of(handle), number, made);
  if (id != nullptr) *id = number;
  if (graph != nullptr) *graph = static_cast<cudaGraph_t>(made);
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return report(cudaSuccess);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new SharedGraph(graph_of(graph)));
  return report(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned,
                                 unsigned) {
  *object = reinterpret_cast<cudaUserObject_t>(new std::shared_ptr<void>(data, destroy));
  return report(cudaSuccess);
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned) {
  delete reinterpret_cast<std::shared_ptr<void>*>(object);
  return report(cudaSuccess);
}

// The graph belongs to a capture under way, and takes the caller's reference.
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned flags) {
  if (flags != cudaGraphUserObjectMove) return not_simulated("cudaGraphRetainUserObject with a copy");
  if (!Captures::instance().keep(graph, *reinterpret_cast<std::shared_ptr<void>*>(object)))
    return not_simulated("cudaGraphRetainUserObject after the capture");
  return cudaUserObjectRelease(object, 1);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return report(Captures::instance().submit(stream_of(handle),
                                            [graph = graph_of(executable)] { run_in_some_order(*graph); }));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes != nullptr) return not_simulated("cudaGraphGetNodes with an array");
  *count = graph_of(graph)->nodes.size();
  return report(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return report(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete &graph_of(executable);
  return report(cudaSuccess);
}
}
