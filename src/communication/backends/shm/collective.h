// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/shm/arrival.h"
#include "backends/shm/communicator.h"
#include "backends/shm/direct_read.h"
#include "backends/shm/pipeline.h"
#include "backends/shm/request.h"
#include "backends/shm/zero_copy.h"

namespace lockstep::shm {

// One collective call of a group on one rank:
//   post       publishes the descriptor, with small data beside it;
//   arrival    all ranks have published, and agree;
//   then one of three ways, which all ranks choose alike from the descriptors:
//   small      all data is beside the descriptors: read it, done;
//   in place   every rank's data can be read where it lies: see ZeroCopy (all-reduce, reduce) and DirectRead
//              (all others);
//   chunked    through the staging buffers, see Pipeline.
class Collective : public Task {
 public:
  Collective(const Communicator& communicator, Request request);

  // Publishes the descriptor of call `number`. Call it once, under the engine's lock. `pipeline_start` counts
  // the pipeline's chunks of all earlier calls; it is advanced past this call's chunks as soon as they are
  // known.
  void post(std::uint64_t number, std::uint64_t& pipeline_start);

  // Instead of post(), for a call that Engine::start_eager() has published.
  void resume(std::uint64_t number, std::uint64_t& pipeline_start);

  bool advance() override;
  std::vector<int> awaited() const override;

  std::uint64_t number() const { return number_; }
  // The description of call `number` by every rank that has published it, one per line.
  static std::string describe_descriptors(const Communicator& communicator, std::uint64_t number);

 private:
  enum class Way : std::uint8_t { unknown, small, in_place, chunked };

  bool everybody_arrived();
  Way choose_way() const;
  bool finish();
  bool is_in_doubt() const;
  void begin_chunks();
  void begin_in_place();
  void begin_zero_copy();
  void begin_direct_read();
  std::vector<int> readers() const;
  std::vector<int> others() const;

  const Communicator& communicator_;
  Request request_;
  Arrival arrival_;
  std::uint64_t number_ = 0;
  std::uint64_t* pipeline_start_ = nullptr;
  Way way_ = Way::unknown;
  std::optional<ZeroCopy> zero_copy_;
  std::optional<DirectRead> direct_read_;
  std::optional<Pipeline> pipeline_;
};

}  // namespace lockstep::shm
