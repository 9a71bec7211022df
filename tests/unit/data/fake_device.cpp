// SPDX-License-Identifier: BSD-3-Clause
#include "unit/data/fake_device.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <torch/library.h>

namespace lockstep::data::testing {
namespace {

constexpr auto kFake = c10::DeviceType::PrivateUse1;

class Log {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

Log& fake_log() {
  static Log log;
  return log;
}

c10::Stream& current_stream() {
  thread_local c10::Stream stream(c10::Stream::UNSAFE, c10::Device(kFake, 0), 0);
  return stream;
}

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kFake, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 1);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return std::exchange(current_stream(), stream);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    static std::atomic<std::intptr_t> made = 0;
    if (*event == nullptr) *event = reinterpret_cast<void*>(++made);
    fake_log().add(fmt::format("record stream={}", stream.id()));
  }
  void block(void*, const c10::Stream& stream) const override {
    fake_log().add(fmt::format("block stream={}", stream.id()));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream& stream) const override {
    fake_log().add(fmt::format("keep stream={}", stream.id()));
  }
};

// Memory of malloc, under the name of a device.
struct FakeAllocator final : c10::Allocator {
  explicit FakeAllocator(c10::Device of) : device(of) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::malloc(std::max<std::size_t>(bytes, 1));
    return {memory, memory, &std::free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  c10::Device device;
};

// As that of the CPU, but it remembers what is pinned.
struct FakePinnedAllocator final : c10::Allocator {
  static std::set<const void*>& pinned() {
    static std::set<const void*> blocks;
    return blocks;
  }
  static std::mutex& mutex() {
    static std::mutex guard;
    return guard;
  }
  static void release(void* memory) {
    {
      const std::lock_guard lock(mutex());
      pinned().erase(memory);
    }
    std::free(memory);
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = std::malloc(std::max<std::size_t>(bytes, 1));
    const std::lock_guard lock(mutex());
    pinned().insert(memory);
    return {memory, memory, &release, c10::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(FakePinnedAllocator::mutex());
    return FakePinnedAllocator::pinned().contains(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static FakePinnedAllocator allocator;
    return &allocator;
  }
};

FakeAllocator& fake_memory() {
  static FakeAllocator allocator(c10::Device(kFake, 0));
  return allocator;
}

at::Tensor fake_empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                      std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>,
                      std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &fake_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor fake_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                              std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &fake_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

// The same memory as a tensor of the CPU.
at::Tensor host_view(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU));
}

at::Tensor fake_copy(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.is_cpu()) {
    fake_log().add(fmt::format("copy stream={}{}{}", current_stream().id(), from.is_pinned() ? " pinned" : "",
                               non_blocking ? " non_blocking" : ""));
  }
  host_view(to).copy_(host_view(from));
  return to;
}

// For operators that have given `to` no size yet.
at::Tensor fake_copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    const auto fresh = fake_empty(from.sizes(), to.scalar_type(), {}, {}, {}, {});
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return fake_copy(from, to, false);
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

struct Registered {
  Registered() {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(kFake, &fake_memory());
    static const FakeGuard guard;
    const c10::impl::DeviceGuardImplRegistrar registrar(kFake, &guard);
    static FakeHooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    aten.impl("empty.memory_format", &fake_empty);
    aten.impl("empty_strided", &fake_empty_strided);
    aten.impl("_copy_from", &fake_copy);
    aten.impl("_copy_from_and_resize", &fake_copy_and_resize);
    aten.impl("as_strided", &at::native::as_strided_tensorimpl);
    aten.impl("view", &at::native::view);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  }
  torch::Library aten{torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
  torch::Library all{torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
};

}  // namespace

void register_fake_device() { static const Registered registered; }

std::vector<std::string> take_fake_log() { return fake_log().take(); }

c10::Device fake_device() { return {kFake, 0}; }

}  // namespace lockstep::data::testing
