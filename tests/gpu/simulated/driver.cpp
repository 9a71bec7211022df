// SPDX-License-Identifier: BSD-3-Clause
// libcuda.so.1: the little of CUDA's driver that LibTorch asks when it starts. The names are the driver's
// own.
#include <cstdint>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 801;
constexpr int kMulticastSupported = 132;
std::uintptr_t context = 1;

}  // namespace

extern "C" {

int cuCtxGetCurrent(void** current) {
  *current = &context;
  return kSuccess;
}
int cuCtxSetCurrent(void*) { return kSuccess; }
int cuDeviceGet(int* device, int index) {
  *device = index;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  // Makes c10d allocate buckets from NCCL, as on GPUs with NVLink.
  *value = attribute == kMulticastSupported ? 1 : 0;
  return kSuccess;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** retained, int) { return cuCtxGetCurrent(retained); }
int cuGetErrorString(int, const char** text) {
  *text = "not simulated";
  return kSuccess;
}
int cuFuncGetAttribute() { return kNotSupported; }
int cuFuncSetAttribute() { return kNotSupported; }
int cuFuncSetCacheConfig() { return kNotSupported; }
int cuLaunchCooperativeKernel() { return kNotSupported; }
int cuLaunchKernel() { return kNotSupported; }
int cuLinkAddData_v2() { return kNotSupported; }
int cuLinkComplete() { return kNotSupported; }
int cuLinkCreate_v2() { return kNotSupported; }
int cuModuleGetFunction() { return kNotSupported; }
int cuModuleLoad() { return kNotSupported; }
int cuModuleLoadData() { return kNotSupported; }
int cuModuleLoadDataEx() { return kNotSupported; }
int cuModuleUnload() { return kNotSupported; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor() { return kNotSupported; }
int cuPointerGetAttribute() { return kNotSupported; }
int cuTensorMapEncodeTiled() { return kNotSupported; }
}
