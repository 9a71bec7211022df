// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <mpi.h>
#include <string>

#include <lockstep/base/error.h>

#include "backends/mpi/module/lost_ranks.h"

namespace lockstep::mpi {

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
