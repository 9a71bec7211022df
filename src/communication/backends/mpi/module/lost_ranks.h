// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <mpi.h>
#include <string>
#include <vector>

#include <lockstep/base/error.h>

// Note [Lost ranks]
//
// In plain MPI nothing can be done once a rank has died. ULFM (User Level Failure Mitigation, in Open MPI
// from 5.0 on and in MPI 5) makes the death an error of the calls that need that rank, and MPI continues.
// Calls between other ranks may never end then, as a receive from a rank that has got the error and will not
// send. So a rank that gets it revokes the communicator: every call on it ends with an error, on all ranks.
//
// Where the module is built with an MPI that lacks ULFM, or mpirun has not been asked for it, no rank is ever
// known to be lost, and the functions that change something are not called.

namespace lockstep::mpi {

// Whether this job runs with ULFM. After MPI_Init.
bool job_survives_lost_ranks();

// Whether a call has ended with `result` because of a lost rank.
bool is_loss(int result);
// Whether it has because another rank has revoked the communicator.
bool is_revocation(int result);

void revoke(MPI_Comm group);
bool is_revoked(MPI_Comm group);

// The ranks of `group` that this rank knows to be lost. Makes progress, through which it gets to know them.
std::vector<int> lost_ranks_of(MPI_Comm group);

// The communicator of these ranks. Unlike MPI_Comm_create_group(), needs nothing of ranks outside of them.
MPI_Comm create_among_survivors(MPI_Group members, int tag);

// Throws Error with MPI's text for a result that is not MPI_SUCCESS: PeerLost if a rank is lost.
inline void check(int result, const char* function) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  const auto reason =
      std::string(function) + ": " + std::string(text.data(), static_cast<std::size_t>(length));
  if (is_loss(result)) throw PeerLost(reason);
  if (is_revocation(result))
    throw PeerLost("another rank has left its calls after an error (" + reason + ")");
  throw Error(reason);
}

}  // namespace lockstep::mpi
