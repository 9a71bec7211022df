// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backends/shm/request.h"
#include "base/env.h"

// Note [The MPI module]
//
// Programs that do not use the mpi backend must not load libmpi, and they must run where it is missing. So
// the code that calls MPI is a shared library of its own, liblockstep_mpi.so, and this header is all that the
// rest knows of it: neither side needs LibTorch here. library.cpp opens it with dlopen() when the first mpi
// group is made. It is opened with RTLD_GLOBAL, because parts of MPI libraries are plug-ins that look up
// libmpi's symbols among the global ones. The module describes calls as the core of shm does.

namespace lockstep::mpi {

// The peer of a receive from any rank.
inline constexpr int kAnyPeer = -1;

struct Message {
  bool is_send = false;
  int peer = kAnyPeer;
  int tag = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// A started call. Not safe from several threads at once. One that is destroyed unfinished leaves its requests
// to MPI, so its memory must stay valid.
class Pending {
 public:
  Pending() = default;
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  // Makes progress. True: the call is finished, and its memory is no longer used.
  virtual bool test() = 0;
  // Ends a receive that has not begun.
  virtual void cancel() = 0;
  // The sender of a finished receive.
  virtual int source() const = 0;
};

// The ranks of one group. The functions are MPI's: the run() ones block, the start() ones do not. All throw
// Error with MPI's text, and PeerLost if that says that a rank is lost.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual void run(const shm::Request& request) = 0;
  virtual std::unique_ptr<Pending> start(const shm::Request& request) = 0;
  virtual void run(const Message& message) = 0;
  virtual std::unique_ptr<Pending> start(const Message& message) = 0;
  // Tags above it belong to the backend.
  virtual int largest_tag() const = 0;
  // Ends the calls of all its ranks, now and later, with PeerLost. Only if Library::survives_lost_ranks().
  virtual void revoke() = 0;
  // Whether one of its ranks has called revoke().
  virtual bool is_revoked() = 0;
  // The ranks that MPI knows to be lost. None unless Library::survives_lost_ranks().
  virtual std::vector<int> lost_ranks() = 0;
  // All ranks call it. A communicator that is destroyed without it is left to MPI.
  virtual void free() = 0;
};

enum class Threads : std::uint8_t {
  one,  // MPI takes calls of one thread
  all,  // MPI takes calls of every thread (MPI_THREAD_MULTIPLE)
};

// MPI itself. One in a process.
class Library {
 public:
  Library() = default;
  virtual ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // The thread that calls it also calls finalize(). Respects an MPI that the program has initialised; throws
  // Error if that one takes calls of one thread only.
  virtual Threads initialize(Threads wanted) = 0;
  // Whether MPI ends calls because of a lost rank and can be used afterwards. After initialize().
  virtual bool survives_lost_ranks() const = 0;
  // Waits for all ranks of MPI's world, or until one is lost or has called leave(). Does nothing if the
  // program itself has initialised or finalized MPI.
  virtual void finalize() = 0;
  // Instead of finalize(): this process ends, and the others do not wait for it. Only if
  // survives_lost_ranks().
  virtual void leave() = 0;
  virtual int world_rank() const = 0;
  virtual int world_size() const = 0;
  // Whether this process knows of a rank of MPI's world that is lost or has left.
  virtual bool has_lost_ranks() const = 0;
  // The ranks of a new group, by their ranks in MPI's world; only they call it. `tag` keeps groups apart that
  // are made at the same time. `after_loss`: one of them has_lost_ranks(); the same on all.
  virtual std::unique_ptr<Communicator> create(const std::vector<int>& world_ranks, int tag,
                                               bool after_loss) = 0;
};

// The name of the module's entry, and its type.
inline constexpr const char* kEntry = "lockstep_mpi_library";
using Entry = Library* (*)();

// Loads the module: the file that LOCKSTEP_MPI_MODULE names, else liblockstep_mpi.so beside
// this program or library, in its lib folder, or where Lockstep was installed. Throws Error that names the
// reason of each failure. See Note [The MPI module].
Library& load_library(const Env& env);

}  // namespace lockstep::mpi
