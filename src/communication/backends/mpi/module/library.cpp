// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/library.h"

#include <chrono>
#include <stdlib.h>
#include <thread>

#include "backends/mpi/module/lost_ranks.h"
#include "backends/mpi/module/requests.h"
#include "backends/mpi/module/types.h"

namespace lockstep::mpi {
namespace {

int largest_tag_of(MPI_Comm group) {
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(group, MPI_TAG_UB, static_cast<void*>(&value), &found);
  return found != 0 ? *static_cast<int*>(value) : 32767;
}

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm group) : group_(group), own_tag_(largest_tag_of(MPI_COMM_WORLD)) {}

  void run(const shm::Request& request) override {
    Requests requests(true);
    post(request, group_, own_tag_, requests);
    requests.finish();
  }

  std::unique_ptr<Pending> start(const shm::Request& request) override {
    auto requests = std::make_unique<Requests>(false);
    post(request, group_, own_tag_, *requests);
    return requests;
  }

  void run(const Message& message) override {
    Requests requests(true);
    const Extent extent(message.bytes);
    if (message.is_send) {
      return check(MPI_Send(message.data, extent.count(), extent.type(), message.peer, message.tag, group_),
                   "MPI_Send");
    }
    MPI_Status status{};
    requests.expect(message);
    check(
        MPI_Recv(message.data, extent.count(), extent.type(), peer_of(message), message.tag, group_, &status),
        "MPI_Recv");
    requests.take(status);
  }

  std::unique_ptr<Pending> start(const Message& message) override {
    auto requests = std::make_unique<Requests>(false);
    const Extent extent(message.bytes);
    requests->expect(message);
    if (message.is_send) {
      check(MPI_Isend(message.data, extent.count(), extent.type(), message.peer, message.tag, group_,
                      requests->next()),
            "MPI_Isend");
    } else {
      check(MPI_Irecv(message.data, extent.count(), extent.type(), peer_of(message), message.tag, group_,
                      requests->next()),
            "MPI_Irecv");
    }
    return requests;
  }

  int largest_tag() const override { return own_tag_ - 2; }
  void revoke() override { mpi::revoke(group_); }
  bool is_revoked() override { return mpi::is_revoked(group_); }
  std::vector<int> lost_ranks() override { return lost_ranks_of(group_); }
  void free() override { check(MPI_Comm_free(&group_), "MPI_Comm_free"); }

 private:
  static int peer_of(const Message& message) {
    return message.peer == kAnyPeer ? MPI_ANY_SOURCE : message.peer;
  }

  MPI_Comm group_;
  int own_tag_;  // of messages inside of a collective
};

class MpiLibrary final : public Library {
 public:
  Threads initialize(Threads wanted) override {
    int provided = MPI_THREAD_SINGLE;
    int done = 0;
    MPI_Initialized(&done);
    if (done != 0) {
      const auto threads = threads_of_program();
      survives_ = job_survives_lost_ranks();
      return threads;
    }
    // Rabenseifner's algorithm. Open MPI's own choice for an all-reduce in place sends the whole buffer to
    // one rank, which takes three times as long at 25 MB. A value that the user has set stays.
    ::setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "3", 0);
    const int level = wanted == Threads::all ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
    check(MPI_Init_thread(nullptr, nullptr, level, &provided), "MPI_Init_thread");
    is_ours_ = true;
    survives_ = job_survives_lost_ranks();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return wanted == Threads::all && provided == MPI_THREAD_MULTIPLE ? Threads::all : Threads::one;
  }

  bool survives_lost_ranks() const override { return survives_; }

  void finalize() override {
    if (is_ours_to_end() && (!survives_ || all_come())) check(MPI_Finalize(), "MPI_Finalize");
  }
  void leave() override {
    if (is_ours_to_end()) revoke(MPI_COMM_WORLD);
  }

  int world_rank() const override {
    int rank = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }
  int world_size() const override {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }

  bool has_lost_ranks() const override {
    return survives_ && (is_revoked(MPI_COMM_WORLD) || !lost_ranks_of(MPI_COMM_WORLD).empty());
  }

  std::unique_ptr<Communicator> create(const std::vector<int>& world_ranks, int tag,
                                       bool after_loss) override {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    MPI_Comm group = MPI_COMM_NULL;
    check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members),
          "MPI_Group_incl");
    if (after_loss) {
      group = create_among_survivors(members, tag);
    } else {
      check(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &group), "MPI_Comm_create_group");
    }
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    check(MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return std::make_unique<MpiCommunicator>(group);
  }

 private:
  static Threads threads_of_program() {
    int provided = MPI_THREAD_SINGLE;
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended != 0) throw Error("MPI has been finalized, and it cannot be initialised a second time");
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
    if (provided == MPI_THREAD_MULTIPLE) return Threads::all;
    throw Error(
        "the program has initialised MPI for one thread; call MPI_Init_thread with MPI_THREAD_MULTIPLE, or "
        "leave it to lockstep::init()");
  }

  bool is_ours_to_end() const {
    int done = 0;
    MPI_Finalized(&done);
    return is_ours_ && done == 0;
  }

  // Without a rank that has ended with an error code, MPI_Finalize() never returns: mpirun reports only ranks
  // that a signal has ended. False if a rank is lost or has left.
  static bool all_come() {
    MPI_Request all = MPI_REQUEST_NULL;
    int done = 0;
    int result = MPI_Ibarrier(MPI_COMM_WORLD, &all);
    while (result == MPI_SUCCESS && done == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      result = MPI_Test(&all, &done, MPI_STATUS_IGNORE);
    }
    return result == MPI_SUCCESS;
  }

  bool is_ours_ = false;
  bool survives_ = false;
};

}  // namespace
}  // namespace lockstep::mpi

extern "C" __attribute__((visibility("default"))) lockstep::mpi::Library* lockstep_mpi_library();

lockstep::mpi::Library* lockstep_mpi_library() {
  static lockstep::mpi::MpiLibrary library;
  return &library;
}
