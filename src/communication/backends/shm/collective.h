// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/shm/arrival.h"
#include "backends/shm/communicator.h"
#include "backends/shm/direct_read.h"
#include "backends/shm/kernels.h"
#include "backends/shm/pipeline.h"
#include "backends/shm/request.h"

namespace lockstep::shm {

// An all-reduce or a reduce of tensors in the ranks' heaps: each part is read from every rank's memory, and
// written to that of all ranks or of the root, without a copy. Every rank starts with its own share. A rank
// that has finished its share and still finds other shares incomplete after some polls claims parts that
// others have not started, so that a busy rank does not delay them. The bits do not depend on the rank that
// reduces a part.
class ZeroCopy {
 public:
  // Construct it after all ranks have published call `number`; rank i's tensor starts at rows[i]. `root`: the
  // rank whose tensor becomes the result, or -1: all.
  ZeroCopy(const Communicator& communicator, std::uint64_t number, std::vector<std::byte*> rows, int root,
           std::size_t bytes, std::size_t width, ReduceKernel kernel);

  bool advance();  // as Task::advance()
  // Owners of shares that are not done.
  std::vector<int> awaited() const;

 private:
  std::uint32_t parts_of(int owner) const;
  Share& share_of(int owner) const { return communicator_.control_block(owner).shares[number_ % kSlots]; }
  bool is_done(int owner) const;
  void work_on(int owner);
  void reduce(std::size_t begin, std::size_t end);

  const Communicator& communicator_;
  std::uint64_t number_;
  std::vector<std::byte*> rows_;
  int root_;
  std::vector<void*> cursors_;
  std::size_t bytes_;
  std::size_t width_;
  ReduceKernel kernel_;
  int polls_ = 0;  // calls of advance(), up to kPollsBeforeHelp + 1
};

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
  // Those whose call differs from that of the first rank that has begun it.
  static std::vector<int> ranks_that_differ(const Communicator& communicator, std::uint64_t number);

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
