// SPDX-License-Identifier: BSD-3-Clause
#include "capture.h"

#include <algorithm>

namespace lockstep::simulated {
namespace {

void merge(Dependencies& into, const Dependencies& from) {
  for (const auto& [stream, count] : from) into[stream] = std::max(into[stream], count);
}

}  // namespace

Captures& Captures::instance() {
  static auto* const captures = new Captures;
  return *captures;
}

cudaStreamCaptureMode& capture_mode_of_thread() {
  thread_local auto mode = cudaStreamCaptureModeGlobal;
  return mode;
}

std::shared_ptr<Capture> Captures::of_locked(const Stream& stream) {
  for (const auto& capture : captures_) {
    if (capture->dependencies_of.contains(&stream)) return capture;
  }
  return nullptr;
}

bool Captures::is_capturing(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  return of_locked(stream) != nullptr;
}

cudaStreamCaptureStatus Captures::status(const Stream& stream, unsigned long long& id, void*& graph) {
  const std::lock_guard lock(mutex_);
  const auto capture = of_locked(stream);
  id = capture ? capture->id : 0;
  graph = capture.get();
  if (!capture) return cudaStreamCaptureStatusNone;
  return capture->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

bool Captures::keep(const void* graph, const std::shared_ptr<void>& object) {
  const std::lock_guard lock(mutex_);
  for (const auto& capture : captures_) {
    if (capture.get() != graph) continue;
    capture->graph.kept.push_back(object);
    return true;
  }
  return false;
}

cudaError_t Captures::begin(Stream& stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(mutex_);
  if (of_locked(stream)) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->dependencies_of[&stream] = {};
  captures_.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t Captures::end(Stream& stream, std::shared_ptr<Graph>& graph) {
  const std::lock_guard lock(mutex_);
  const auto capture = of_locked(stream);
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  std::erase(captures_, capture);
  capture->ended = true;
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  auto& joined = capture->dependencies_of[&stream];
  for (const auto& [other, dependencies] : capture->dependencies_of) {
    for (const auto& [of, count] : dependencies) {
      if (joined[of] < count) return cudaErrorStreamCaptureUnjoined;
    }
  }
  graph = std::make_shared<Graph>(std::move(capture->graph));
  return cudaSuccess;
}

cudaError_t Captures::submit(Stream& stream, Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto capture = of_locked(stream)) {
      if (capture->broken) return cudaErrorStreamCaptureInvalidated;
      auto& dependencies = capture->dependencies_of[&stream];
      capture->graph.nodes.push_back({&stream, std::move(work), dependencies});
      ++dependencies[&stream];
      return cudaSuccess;
    }
  }
  stream.add(std::move(work));
  return cudaSuccess;
}

cudaError_t Captures::record(Event& event, Stream& stream) {
  {
    const std::lock_guard lock(mutex_);
    event.capture = of_locked(stream);
    if (event.capture) {
      event.dependencies = event.capture->dependencies_of[&stream];
      return event.capture->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
  }
  event.fence = stream.mark();
  return cudaSuccess;
}

cudaError_t Captures::wait(Stream& stream, const Event& event) {
  {
    const std::lock_guard lock(mutex_);
    const auto capture = of_locked(stream);
    if (event.capture && !event.capture->ended) {
      if (capture && capture != event.capture) {
        capture->broken = event.capture->broken = true;
        return cudaErrorStreamCaptureMerge;
      }
      if (stream.is_default()) {
        event.capture->broken = true;
        return cudaErrorStreamCaptureImplicit;
      }
      merge(event.capture->dependencies_of[&stream], event.dependencies);
      return cudaSuccess;
    }
    if (event.capture) return cudaSuccess;
    if (capture && event.fence) {
      capture->broken = true;
      return cudaErrorStreamCaptureIsolation;
    }
  }
  if (event.fence && !event.fence->reached()) {
    stream.add([fence = event.fence] { fence->wait(); });
  }
  return cudaSuccess;
}

cudaError_t Captures::check_unsafe() {
  const auto mode = capture_mode_of_thread();
  if (mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const std::lock_guard lock(mutex_);
  bool refused = false;
  for (const auto& capture : captures_) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (own || (capture->mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal)) {
      capture->broken = true;
      refused = true;
    }
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t Captures::check_wait(const Stream* stream, int device) {
  const std::lock_guard lock(mutex_);
  bool refused = false;
  for (const auto& capture : captures_) {
    const bool concerned =
        stream != nullptr ? capture->dependencies_of.contains(stream) : capture->origin->device() == device;
    if (!concerned) continue;
    capture->broken = true;
    refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

}  // namespace lockstep::simulated
