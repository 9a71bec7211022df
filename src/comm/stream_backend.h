// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/comm/backend.h>

namespace lockstep::comm {

// A backend of which some calls end on a device's stream: waiting for such a Work makes the stream wait, not
// the host, so that somebody else has to see when one fails or never ends.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;
  virtual bool ends_on_stream(const c10d::Work& work) const = 0;
  // The same call to be asked from another thread whether it has ended; keeps no tensor alive. Null for one
  // that is being captured into a graph: it is not run now.
  virtual c10::intrusive_ptr<c10d::Work> observer_of(const c10::intrusive_ptr<c10d::Work>& work) const = 0;
  // Ends when what the current stream holds now has been done.
  virtual c10::intrusive_ptr<c10d::Work> mark_stream() const = 0;
  // Called once by the thread that asks.
  virtual void prepare_observing_thread() const = 0;
};

}  // namespace lockstep::comm
