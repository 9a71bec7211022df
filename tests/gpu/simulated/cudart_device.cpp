// SPDX-License-Identifier: BSD-3-Clause
// CUDA's runtime interface: devices and errors.
#include <cstdio>
#include <cstring>
#include <cuda_runtime_api.h>

#include "capture.h"
#include "devices.h"
#include "memory.h"
#include "result.h"

using namespace lockstep::simulated;

namespace {

bool is_device(int device) { return device >= 0 && static_cast<std::size_t>(device) < devices().size(); }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(devices().size());
  return report(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return report(devices().empty() ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  current_device() = device;
  return report(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize() {
  if (const auto refused = Captures::instance().check_wait(nullptr, current_device())) return report(refused);
  wait_for_device(current_device());
  return report(device_failure());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "simulated GPU");
  properties->uuid.bytes[0] = static_cast<char>(devices().at(static_cast<std::size_t>(device)).number + 1);
  properties->totalGlobalMem = Memory::kPerDevice;
  properties->sharedMemPerBlock = 48 << 10;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  for (int& most : properties->maxThreadsDim) most = 1024;
  for (int& most : properties->maxGridSize) most = 65535;
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->pciBusID = devices().at(static_cast<std::size_t>(device)).number + 1;
  return report(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return report(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) return report(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0",
                devices().at(static_cast<std::size_t>(device)).number + 1);
  return report(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return report(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return report(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return report(cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return report(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return report(cudaSuccess);
}

cudaError_t cudaGetLastError() {
  const auto error = last_error();
  last_error() = device_failure();
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error(); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaError";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorNotSupported:
      return "operation not supported (not simulated)";
    case cudaErrorAssert:
      return "device-side assert triggered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureMerge:
      return "operation would result in a merge of separate capture sequences";
    case cudaErrorStreamCaptureUnmatched:
      return "capture was not ended in the same stream as it began";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureWrongThread:
      return "attempt to terminate a thread-local capture from another thread";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "unknown error";
  }
}

cudaError_t cudaProfilerStart() { return report(cudaSuccess); }
cudaError_t cudaProfilerStop() { return report(cudaSuccess); }
}
