// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/env.h>

#include "backends/mpi/library.h"

namespace lockstep::mpi {

// Loads the module at the first call: the file that LOCKSTEP_MPI_MODULE names, else liblockstep_mpi.so beside
// this program or library, in its lib folder, or where Lockstep was installed. Throws Error that names the
// reason of each failure. See Note [The MPI module].
Library& load_library(const Env& env);

}  // namespace lockstep::mpi
