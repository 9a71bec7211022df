// SPDX-License-Identifier: BSD-3-Clause
// What LibTorch from 2.15 on links of NCCL and nothing of ours calls. Without NCCL's header, whose older
// versions lack some of it.
#include <cstdio>

namespace {

constexpr int kInvalidUsage = 5;

int not_simulated(const char* function) {
  std::fprintf(stderr, "simulated GPU: %s is not simulated\n", function);
  return kInvalidUsage;
}

}  // namespace

extern "C" {

int ncclCommGetUniqueId() { return not_simulated(__func__); }
int ncclCommGrow() { return not_simulated(__func__); }
int ncclCommMemStats() { return not_simulated(__func__); }
int ncclCommResume() { return not_simulated(__func__); }
int ncclCommRevoke() { return not_simulated(__func__); }
int ncclCommSuspend() { return not_simulated(__func__); }
int ncclGather() { return not_simulated(__func__); }
int ncclGetLsaMultimemDevicePointer() { return not_simulated(__func__); }
int ncclGetPeerDevicePointer() { return not_simulated(__func__); }
int ncclPutSignal() { return not_simulated(__func__); }
int ncclSignal() { return not_simulated(__func__); }
int ncclWaitSignal() { return not_simulated(__func__); }
int ncclWinGetUserPtr() { return not_simulated(__func__); }
}
