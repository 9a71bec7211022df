// SPDX-License-Identifier: BSD-3-Clause
// CUDA's runtime interface: what LibTorch links and nothing of ours has called.
#include <cstddef>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "result.h"

using lockstep::simulated::not_simulated;

extern "C" {

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return not_simulated(__func__); }
cudaError_t cudaMallocAsync(void**, std::size_t, cudaStream_t) { return not_simulated(__func__); }
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return not_simulated(__func__); }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return not_simulated(__func__); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return not_simulated(__func__); }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, std::size_t) {
  return not_simulated(__func__);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return not_simulated(__func__); }
cudaError_t cudaGetSymbolAddress(void**, const void*) { return not_simulated(__func__); }
cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
  return not_simulated(__func__);
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return not_simulated(__func__); }
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         std::size_t*) {
  return not_simulated(__func__);
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*,
                             std::size_t, cudaGraphNodeParams*) {
  return not_simulated(__func__);
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return not_simulated(__func__);
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, std::size_t, cudaStreamCaptureMode) {
  return not_simulated(__func__);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*,
                                                std::size_t, unsigned) {
  return not_simulated(__func__);
}
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) {
  return not_simulated(__func__);
}
cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) {
  return not_simulated(__func__);
}
cudaError_t cudaMallocHost(void**, std::size_t) { return not_simulated(__func__); }
cudaError_t cudaMallocManaged(void**, std::size_t, unsigned) { return not_simulated(__func__); }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryGetGlobal(void**, std::size_t*, cudaLibrary_t, const char*) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, const char*) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryGetKernelCount(unsigned*, cudaLibrary_t) { return not_simulated(__func__); }
cudaError_t cudaLibraryGetManaged(void**, std::size_t*, cudaLibrary_t, const char*) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryGetUnifiedFunction(void**, cudaLibrary_t, const char*) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t*, const char*, cudaJitOption*, void**, unsigned,
                                    cudaLibraryOption*, void**, unsigned) {
  return not_simulated(__func__);
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return not_simulated(__func__); }
cudaError_t cudaIpcCloseMemHandle(void*) { return not_simulated(__func__); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return not_simulated(__func__); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return not_simulated(__func__); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return not_simulated(__func__); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return not_simulated(__func__); }

// Functions of the driver, by name: those of libcuda.so.1 beside this.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = ::dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr)
    *function = reinterpret_cast<void*>(+[] { return 801; });  // CUDA_ERROR_NOT_SUPPORTED
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
