// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/intra_op_threads.h"

#include <dlfcn.h>

namespace lockstep::rendezvous {

void release_idle_team() {
  // OpenMP 5.0. Looked up, since the OpenMP library to ask is the one that LibTorch has loaded.
  using Pause = int (*)(int kind, int device);
  using Device = int (*)();
  static const auto pause = reinterpret_cast<Pause>(::dlsym(RTLD_DEFAULT, "omp_pause_resource"));
  static const auto host = reinterpret_cast<Device>(::dlsym(RTLD_DEFAULT, "omp_get_initial_device"));
  constexpr int kSoft = 1;
  if (pause != nullptr && host != nullptr) pause(kSoft, host());
}

}  // namespace lockstep::rendezvous
