// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/mpi/module/requests.h"

namespace lockstep::mpi {

// Makes the calls of MPI for one collective.
void post(const shm::Request& request, MPI_Comm group, int tag, Requests& requests);

}  // namespace lockstep::mpi
