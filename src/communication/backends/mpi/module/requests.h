// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backends/mpi/library.h"
#include "backends/mpi/module/lost_ranks.h"

namespace lockstep::mpi {

// The MPI requests of one call, and the memory that it needs besides the caller's.
class Requests final : public Pending {
 public:
  explicit Requests(bool blocks) : blocks_(blocks) {}

  // Calls the blocking or the non-blocking form of one function of MPI. The calls of one Requests run in
  // order, and all of them must be made before test().
  template <auto Blocking, auto Starting, class... Arguments>
  void call(const char* name, Arguments... arguments) {
    check(blocks_ ? Blocking(arguments...) : Starting(arguments..., next()), name);
  }

  // For the next call of MPI only.
  MPI_Request* next() {
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }
  bool blocks() const { return blocks_; }

  // Memory that lives as long as the call.
  std::byte* room(std::size_t bytes) { return rooms_.emplace_back(bytes).data(); }
  const std::byte* copy_of(const shm::Source& source) {
    auto* const copy = room(source.bytes);
    std::copy_n(source.data, source.bytes, copy);
    return copy;
  }
  // What to copy once the call is finished.
  void copy_later(std::byte* to, const std::byte* from, std::size_t bytes) {
    copies_.push_back({to, from, bytes});
  }

  // Waits for all requests.
  void finish() {
    if (!requests_.empty()) {
      check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
            "MPI_Waitall");
    }
    copy();
  }

  bool test() override {
    for (; done_ < requests_.size(); ++done_) {
      int done = 0;
      MPI_Status status{};
      check(MPI_Test(&requests_[done_], &done, &status), "MPI_Test");
      if (done == 0) return false;
      take(status);
    }
    copy();
    return true;
  }

  void cancel() override {
    for (auto& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    done_ = requests_.size();
  }

  // For a receive, whose message must fill its memory.
  void expect(const Message& message) {
    is_receive_ = !message.is_send;
    bytes_ = message.bytes;
  }
  void take(const MPI_Status& status) {
    if (!is_receive_) return;
    MPI_Count bytes = 0;
    check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x");
    source_ = status.MPI_SOURCE;
    if (static_cast<std::size_t>(bytes) == bytes_) return;
    throw Error("the message has " + std::to_string(bytes) + " bytes, but the tensor has " +
                std::to_string(bytes_));
  }
  int source() const override { return source_; }

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };

  void copy() {
    for (const auto& each : std::exchange(copies_, {})) std::memcpy(each.to, each.from, each.bytes);
  }

  bool blocks_;
  bool is_receive_ = false;
  std::size_t bytes_ = 0;
  int source_ = kAnyPeer;
  std::vector<MPI_Request> requests_;
  std::size_t done_ = 0;  // of them
  std::vector<std::vector<std::byte>> rooms_;
  std::vector<Copy> copies_;
};

// Makes the calls of MPI for one collective.
void post(const shm::Request& request, MPI_Comm group, int tag, Requests& requests);

}  // namespace lockstep::mpi
