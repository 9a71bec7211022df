// SPDX-License-Identifier: BSD-3-Clause
#include "intercept/storage_guard.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/library.h>

namespace lockstep::intercept {
namespace {

// LibTorch keeps these keys for wrappers outside of it, but has none. They come before autocast and autograd,
// the first before the second.
constexpr auto kOperatorKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
constexpr auto kMemoryKey = c10::DispatchKey::DeferredInit;
static_assert(kOperatorKey > kMemoryKey);

thread_local OperatorGuard* of_all_operators = nullptr;

// What a guarded storage owns.
struct Guards {
  std::unique_ptr<OperatorGuard> operators;
  std::unique_ptr<MemoryGuard> memory;
  at::Tensor points_at;
};

// A derived class can form a pointer to a protected member.
struct KeySetOf : c10::TensorImpl {
  static constexpr auto member = &KeySetOf::key_set_;
};

void destroy_guards(void* context) { delete static_cast<Guards*>(context); }

c10::DispatchKeySet& keys_of(c10::TensorImpl& impl) { return impl.*KeySetOf::member; }

Guards* guards_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto& memory = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return memory.get_deleter() == &destroy_guards ? static_cast<Guards*>(memory.get_context()) : nullptr;
}

Guards& make_guards(const at::Tensor& tensor, c10::DispatchKey key) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  keys_of(*impl) = impl->key_set().add(key);
  if (auto* const guards = guards_of(tensor)) return *guards;
  auto guards = std::make_unique<Guards>();
  c10::DataPtr nothing(nullptr, guards.get(), destroy_guards, tensor.device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, std::move(nothing), tensor.storage().allocator(), false);
  impl->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  impl->set_storage_offset(0);
  return *guards.release();
}

template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) for_each_tensor(each, visit);
  }
}

void redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::DispatchKey after,
                torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, after), stack);
}

void call_operator_guards(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::SmallVector<OperatorGuard*, 4> guards;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      auto* const guard = is_operator_guarded(tensor) ? operator_guard_of(tensor) : nullptr;
      if (guard != nullptr) guards.push_back(guard);
    });
  }
  if (std::ranges::any_of(guards, [&](auto* guard) { return guard->run(op, *stack); })) return;
  if (of_all_operators != nullptr && of_all_operators->run(op, *stack)) return;
  const WithoutGuards inner_operators(WithoutGuards::Kinds::operators);
  redispatch(op, keys, kOperatorKey, stack);
}

// Calls the memory guards of an operator's arguments. While it lives, tensors whose views are plain have no
// key.
class GuardedCall {
 public:
  explicit GuardedCall(std::string_view op) : op_(op) {}
  ~GuardedCall() {
    for (const auto& impl : plain_) keys_of(*impl) = keys_of(*impl).add(kMemoryKey);
  }
  GuardedCall(const GuardedCall&) = delete;
  GuardedCall& operator=(const GuardedCall&) = delete;

  void add(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined() || !tensor.key_set().has(kMemoryKey)) return;
    auto* const guard = memory_guard_of(tensor);
    if (guard == nullptr || guard->before_use(op_, writes) == MemoryGuard::Views::guarded) return;
    auto impl = tensor.getIntrusivePtr();
    keys_of(*impl) = keys_of(*impl).remove(kMemoryKey);
    plain_.push_back(std::move(impl));
  }

 private:
  std::string_view op_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> plain_;
};

void call_memory_guards(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  GuardedCall call(op.schema().name());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    for_each_tensor(values[i], [&](const at::Tensor& tensor) { call.add(tensor, writes); });
  }
  const WithoutGuards inner_operators;
  redispatch(op, keys, kMemoryKey, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_operator_guards>());
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_memory_guards>());
}

void set_guard(const at::Tensor& tensor, std::unique_ptr<OperatorGuard> guard) {
  make_guards(tensor, kOperatorKey).operators = std::move(guard);
}

void set_guard(const at::Tensor& tensor, std::unique_ptr<MemoryGuard> guard) {
  make_guards(tensor, kMemoryKey).memory = std::move(guard);
}

void set_guarded_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  auto* const guards = guards_of(tensor);
  // The context, and with it the guards, stays the owner.
  storage->_mutable_data_ptr_no_checks().release_context();
  auto* const data = memory.defined() ? memory.data_ptr() : nullptr;
  storage->set_data_ptr_noswap(c10::DataPtr(data, guards, destroy_guards, tensor.device()));
  storage->set_nbytes(memory.defined() ? memory.nbytes() : 0);
  guards->points_at = memory;
}

at::Tensor guarded_memory(const at::Tensor& tensor) {
  const auto* const guards = guards_of(tensor);
  return guards == nullptr ? at::Tensor() : guards->points_at;
}

void forbid_access(const at::Tensor& tensor, const std::string& why) {
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

std::string why_forbidden(const std::string& failure) {
  return fmt::format(
      "the parameters may have values of two steps, because the ranks did not finish the last one together "
      "({}); load the last checkpoint into a new module",
      failure);
}

OperatorGuard* operator_guard_of(const at::Tensor& tensor) {
  const auto* const guards = guards_of(tensor);
  return guards == nullptr ? nullptr : guards->operators.get();
}

MemoryGuard* memory_guard_of(const at::Tensor& tensor) {
  const auto* const guards = guards_of(tensor);
  return guards == nullptr ? nullptr : guards->memory.get();
}

bool has_guard(const at::Tensor& tensor) { return guards_of(tensor) != nullptr; }

std::unique_ptr<OperatorGuard> take_operator_guard(const at::Tensor& tensor) {
  auto* const guards = guards_of(tensor);
  return guards == nullptr ? nullptr : std::move(guards->operators);
}

bool is_operator_guarded(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kOperatorKey);
}

at::Tensor without_operator_guard(const at::Tensor& tensor) {
  if (!is_operator_guarded(tensor)) return tensor;
  const WithoutGuards without;
  auto view = at::alias(tensor);
  auto& keys = keys_of(*view.unsafeGetTensorImpl());
  keys = keys.remove(kOperatorKey);
  return view;
}

WithoutGuards::WithoutGuards(Kinds kinds)
    : excluded_operators_(c10::impl::tls_is_dispatch_key_excluded(kOperatorKey)),
      excluded_memory_(c10::impl::tls_is_dispatch_key_excluded(kMemoryKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kOperatorKey, true);
  if (kinds == Kinds::all) c10::impl::tls_set_dispatch_key_excluded(kMemoryKey, true);
}

OperatorScope::OperatorScope(OperatorGuard& guard) : outer_(std::exchange(of_all_operators, &guard)) {
  c10::impl::tls_set_dispatch_key_included(kOperatorKey, true);
}

OperatorScope::~OperatorScope() {
  of_all_operators = outer_;
  if (outer_ == nullptr) c10::impl::tls_set_dispatch_key_included(kOperatorKey, false);
}

WithoutGuards::~WithoutGuards() {
  c10::impl::tls_set_dispatch_key_excluded(kOperatorKey, excluded_operators_);
  c10::impl::tls_set_dispatch_key_excluded(kMemoryKey, excluded_memory_);
}

}  // namespace lockstep::intercept
