// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <driver_types.h>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "stream.h"

// Stream capture by CUDA's rules: what is not allowed meanwhile is refused with CUDA's error, and breaks the
// capture.
namespace lockstep::simulated {

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool broken = false;
  bool ended = false;
  Graph graph;
  std::map<const Stream*, Dependencies> dependencies_of;  // of each stream that takes part
};

struct Event {
  std::shared_ptr<Fence> fence;      // nullptr before the first record
  std::shared_ptr<Capture> capture;  // the record was captured
  Dependencies dependencies;
};

// All captures of the process. Any thread may call.
class Captures {
 public:
  static Captures& instance();

  cudaError_t begin(Stream& stream, cudaStreamCaptureMode mode);
  // Returns the graph unless the capture is broken.
  cudaError_t end(Stream& stream, std::shared_ptr<Graph>& graph);
  bool is_capturing(const Stream& stream);
  // Also returns the number of the capture, and a handle for keep().
  cudaStreamCaptureStatus status(const Stream& stream, unsigned long long& id, void*& graph);
  // Makes the graph of a capture under way keep the object. False if there is no such capture.
  bool keep(const void* graph, const std::shared_ptr<void>& object);

  // Adds the work to the stream, or to the graph if the stream is being captured.
  cudaError_t submit(Stream& stream, Work work);
  cudaError_t record(Event& event, Stream& stream);
  cudaError_t wait(Stream& stream, const Event& event);

  // For calls that are unsafe during a capture, such as cudaMalloc: rejected according to the modes of the
  // capture and the thread.
  cudaError_t check_unsafe();
  // For waits of the host for a stream, or for a device (nullptr).
  cudaError_t check_wait(const Stream* stream, int device);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Capture>> captures_;  // under way
  unsigned long long next_id_ = 1;

  std::shared_ptr<Capture> of_locked(const Stream& stream);
};

// The calling thread's mode.
cudaStreamCaptureMode& capture_mode_of_thread();

}  // namespace lockstep::simulated
