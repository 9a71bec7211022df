// SPDX-License-Identifier: BSD-3-Clause
// CUDA's runtime interface: kernels. LibTorch's own cannot run; kernels.cpp puts others in their place, and
// what is launched nevertheless is named.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "capture.h"
#include "devices.h"
#include "result.h"
#include "simulated.h"

using namespace lockstep::simulated;

namespace {

// The names of kernels by their stubs on the host.
struct Names {
  std::mutex mutex;
  std::map<const void*, std::string> by_stub;
};

Names& names() {
  static auto* const all = new Names;
  return *all;
}

std::string name_of(const void* stub) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().by_stub.find(stub);
  return found == names().by_stub.end() ? "an unknown kernel" : found->second;
}

constexpr double kClockHz = 2e9;

cudaError_t launch(const void* stub, void** arguments, cudaStream_t stream) {
  const auto name = name_of(stub);
  if (name.find("spin_kernel") != std::string::npos) {
    const auto cycles = *static_cast<const std::int64_t*>(arguments[0]);
    return lockstep_simulated_launch(stream, [cycles] {
      std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(cycles) / kClockHz));
    });
  }
  std::fprintf(stderr, "simulated GPU: the kernel %s is not simulated\n", name.c_str());
  if (std::getenv("LOCKSTEP_SIMULATED_GPU_ABORT") != nullptr) std::abort();
  return report(cudaErrorNotSupported);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  const std::lock_guard lock(names().mutex);
  names().by_stub[stub] = name;
}

struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, std::size_t,
                               cudaStream_t stream);

static CallConfiguration& pushed() {
  thread_local CallConfiguration configuration;
  return configuration;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream) {
  pushed() = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = pushed().grid;
  *block = pushed().block;
  *shared = pushed().shared;
  *static_cast<cudaStream_t*>(stream) = pushed().stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, std::size_t,
                               cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  return launch(stub, arguments, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* stub, dim3, dim3, void** arguments, std::size_t,
                                        cudaStream_t stream) {
  return launch(stub, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* stub, void** arguments) {
  return launch(stub, arguments, configuration->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return report(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return report(cudaSuccess); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = 1;
  return report(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, std::size_t,
                                                                   unsigned) {
  *blocks = 1;
  return report(cudaSuccess);
}
}
