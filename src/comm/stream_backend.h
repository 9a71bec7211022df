// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/comm/backend.h>

namespace lockstep::comm {

// A backend some of whose calls end on a device's stream: waiting for such a Work makes the stream wait, not
// the host, so StreamWatch must detect calls that fail or never end.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  virtual bool ends_on_stream(const c10d::Work& work) const = 0;
  // A handle of the call for another thread that asks whether it has ended; keeps no tensor alive. Null for a
  // call that is captured into a graph, because it does not run now.
  virtual c10::intrusive_ptr<c10d::Work> observer_of(const c10::intrusive_ptr<c10d::Work>& work) const = 0;
  // Ends when the work that is now queued on the current stream is complete.
  virtual c10::intrusive_ptr<c10d::Work> mark_stream() const = 0;
  // Called once by the thread that asks.
  virtual void prepare_observing_thread() const = 0;
};

}  // namespace lockstep::comm
