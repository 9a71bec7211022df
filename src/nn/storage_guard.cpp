// SPDX-License-Identifier: BSD-3-Clause
#include "nn/storage_guard.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

namespace lockstep::nn {
namespace {

// LibTorch keeps this key for wrappers of its own tests. It comes before autocast and autograd.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// A derived class can form a pointer to a protected member.
struct KeySetOf : c10::TensorImpl {
  static constexpr auto member = &KeySetOf::key_set_;
};

void destroy_guard(void* context) { delete static_cast<StorageGuard*>(context); }

c10::DispatchKeySet& keys_of(c10::TensorImpl& impl) { return impl.*KeySetOf::member; }

// Calls the guards of an operator's arguments. While it lives, tensors whose views are plain have no key.
class GuardedCall {
 public:
  explicit GuardedCall(std::string_view op) : op_(op) {}
  ~GuardedCall() {
    for (const auto& impl : plain_) keys_of(*impl) = keys_of(*impl).add(kKey);
  }
  GuardedCall(const GuardedCall&) = delete;
  GuardedCall& operator=(const GuardedCall&) = delete;

  bool run(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    return std::ranges::any_of(guards_, [&](auto* guard) { return guard->run(op, stack); });
  }

  void add(const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      add(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) add(tensor, writes);
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toListRef()) add(each, writes);
    }
  }

 private:
  void add(const at::Tensor& tensor, bool writes) {
    if (!is_guarded(tensor)) return;
    auto* const guard = guard_of(tensor);
    if (guard == nullptr) return;
    guards_.push_back(guard);
    if (guard->before_use(op_, writes) == StorageGuard::Views::guarded) return;
    auto impl = tensor.getIntrusivePtr();
    keys_of(*impl) = keys_of(*impl).remove(kKey);
    plain_.push_back(std::move(impl));
  }

  std::string_view op_;
  c10::SmallVector<StorageGuard*, 4> guards_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> plain_;
};

void call_guards(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  GuardedCall call(op.schema().name());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    call.add(values[i], alias != nullptr && alias->isWrite());
  }
  if (call.run(op, *stack)) return;
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
  keys_of(*impl) = impl->key_set().add(kKey);
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
  const auto& memory = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (memory.get_deleter() != &destroy_guard) return nullptr;
  return static_cast<StorageGuard*>(memory.get_context());
}

bool StorageGuard::run(const c10::OperatorHandle&, torch::jit::Stack&) { return false; }

bool is_guarded(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kKey); }

at::Tensor unguarded(const at::Tensor& tensor) {
  if (!is_guarded(tensor)) return tensor;
  const WithoutGuards without;
  auto view = at::alias(tensor);
  auto& keys = keys_of(*view.unsafeGetTensorImpl());
  keys = keys.remove(kKey);
  return view;
}

WithoutGuards::WithoutGuards() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

WithoutGuards::~WithoutGuards() { c10::impl::tls_set_dispatch_key_excluded(kKey, was_excluded_); }

}  // namespace lockstep::nn
