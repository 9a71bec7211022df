// SPDX-License-Identifier: BSD-3-Clause
// Two devices that are not the CPU, for tests of code that moves tensors between devices: mtia:0 and mtia:1,
// a type of device for which LibTorch has no kernels, and which may be beside CUDA. Their memory is the
// host's, and operators run on the CPU with copies.
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace lockstep::testing {
namespace {

constexpr auto kType = c10::DeviceType::MTIA;
thread_local c10::DeviceIndex current = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(MTIA, Guard);

// Memory of the host that counts as page-locked for these devices.
struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const data = static_cast<char*>(std::malloc(bytes + 1));
    const std::lock_guard lock(mutex());
    blocks()[data] = bytes;
    return {data, data, &release, c10::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
  static bool contains(const void* data) {
    const std::lock_guard lock(mutex());
    const auto next = blocks().upper_bound(static_cast<const char*>(data));
    if (next == blocks().begin()) return false;
    const auto& [start, bytes] = *std::prev(next);
    return static_cast<const char*>(data) <= start + bytes;
  }

 private:
  static std::map<const char*, std::size_t>& blocks() {
    static std::map<const char*, std::size_t> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex all;
    return all;
  }
  static void release(void* data) {
    const std::lock_guard lock(mutex());
    blocks().erase(static_cast<const char*>(data));
    std::free(data);
  }
};

struct Hooks final : at::MTIAHooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasMTIA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 2; }
  // For torch::manual_seed().
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory pinned;
    return &pinned;
  }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::contains(data); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
};
[[maybe_unused]] const bool is_registered = [] {
  at::MTIAHooksRegistry()->Register("MTIAHooks", [](auto&&...) { return std::make_unique<Hooks>(); });
  return true;
}();

struct HostMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const data = std::malloc(bytes);
    return {data, data, std::free, c10::Device(kType, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return std::free; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};
HostMemory memory;

at::Tensor on_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::MTIA), dtype.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current)));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           &memory, c10::DispatchKeySet(c10::DispatchKey::MTIA),
                                           dtype.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  on_cpu(target).copy_(on_cpu(source));
  return target;
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  auto* const storage = self.storage().unsafeGetStorageImpl();
  if (const auto bytes = self.nbytes(); storage->nbytes() < bytes) {
    const c10::DeviceGuard guard(self.device());
    storage->set_data_ptr_noswap(memory.allocate(bytes));
    storage->set_nbytes(bytes);
  }
  return self;
}

at::Tensor& set_(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes,
                 c10::SymIntArrayRef strides) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  if (strides.empty()) {
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(sizes));
  } else {
    impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
  }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(sizes),
                                           C10_AS_INTARRAYREF_SLOW(strides),
                                           offset ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return at::_local_scalar_dense(on_cpu(self)); }

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, MTIA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, MTIA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize_);
  library.impl("set_.source_Storage_storage_offset", set_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace
}  // namespace lockstep::testing
