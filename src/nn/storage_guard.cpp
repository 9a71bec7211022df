// SPDX-License-Identifier: BSD-3-Clause
#include "nn/storage_guard.h"

#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace lockstep::nn {
namespace {

// LibTorch keeps this key for wrappers of its own tests. It comes before autocast and autograd.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// A pointer to a protected member is accessible by way of a derived class.
struct KeySetOf : c10::TensorImpl {
  static constexpr auto member = &KeySetOf::key_set_;
};

void destroy_guard(void* context) { delete static_cast<StorageGuard*>(context); }

void notify(const at::Tensor& tensor, const char* op, bool writes) {
  if (!tensor.defined() || !tensor.key_set().has(kKey)) return;
  if (auto* const guard = guard_of(tensor)) guard->before_use(op, writes);
}

void notify(const c10::IValue& value, const char* op, bool writes) {
  if (value.isTensor()) {
    notify(value.toTensor(), op, writes);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) notify(tensor, op, writes);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) notify(each, op, writes);
  }
}

void call_guards(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    notify(values[i], op.schema().name().c_str(), alias != nullptr && alias->isWrite());
  }
  const WithoutGuards inner_operators;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_guards>());
}

StorageGuard* guard_storage(const at::Tensor& tensor, std::unique_ptr<StorageGuard> guard, void* data,
                            std::size_t bytes) {
  const auto& old = tensor.storage();
  c10::DataPtr memory(data, guard.get(), destroy_guard, tensor.device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(memory), old.allocator(), false);
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  impl->set_storage_offset(0);
  (impl->*KeySetOf::member) = impl->key_set().add(kKey);
  return guard.release();
}

void set_guarded_memory(const at::Tensor& tensor, void* data, std::size_t bytes) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  // The context, and with it the guard, stays the owner.
  auto& memory = storage->_mutable_data_ptr_no_checks();
  auto* const guard = memory.release_context();
  storage->set_data_ptr_noswap(c10::DataPtr(data, guard, destroy_guard, tensor.device()));
  storage->set_nbytes(bytes);
}

StorageGuard* guard_of(const at::Tensor& tensor) {
  const auto& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != &destroy_guard) return nullptr;
  return static_cast<StorageGuard*>(memory.get_context());
}

WithoutGuards::WithoutGuards() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

WithoutGuards::~WithoutGuards() { c10::impl::tls_set_dispatch_key_excluded(kKey, was_excluded_); }

}  // namespace lockstep::nn
