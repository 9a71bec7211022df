// SPDX-License-Identifier: BSD-3-Clause
#include "optim/unaveraged.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>
#include <unordered_map>

#include <ATen/ops/ne.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/mutex.h>

#include "base/throw_error.h"

namespace lockstep::optim {
namespace {

struct Mark {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so that no other tensor gets the address
  at::ScalarType dtype;
  std::size_t hash;  // of its values then
  std::shared_ptr<const std::string> why;
  bool of_other_wrapper = true;
};

struct Marks {
  std::atomic<bool> any{false};
  Mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Mark> all LOCKSTEP_GUARDED_BY(mutex);

  Mark* find(const at::Tensor& parameter) LOCKSTEP_REQUIRES(mutex) {
    const auto found = all.find(parameter.unsafeGetTensorImpl());
    return found == all.end() ? nullptr : &found->second;
  }
  void erase(const at::Tensor& parameter) LOCKSTEP_REQUIRES(mutex) {
    all.erase(parameter.unsafeGetTensorImpl());
    any = !all.empty();
  }
};

Marks& marks() {
  static Marks marks;
  return marks;
}

struct Watch {
  std::function<std::string(const std::vector<at::Tensor>&)> why;
  std::thread::id thread = std::this_thread::get_id();  // of a rank, whose module no other one reads
};

struct Watches {
  std::atomic<bool> any{false};
  Mutex mutex;
  std::list<Watch> all LOCKSTEP_GUARDED_BY(mutex);
};

Watches& watches() {
  static Watches watches;
  return watches;
}

// Changes with the values. LibTorch's optimizers bypass the version counter.
std::size_t hash_of(const at::Tensor& tensor) {
  const auto values = tensor.detach().contiguous().cpu();
  return std::hash<std::string_view>{}({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
}

// Whether the values are others than those that the mark knows. A conversion may have rounded them since.
bool has_changed(const at::Tensor& parameter, const Mark& mark) {
  const bool was_rounded = c10::promoteTypes(parameter.scalar_type(), mark.dtype) != parameter.scalar_type();
  return !was_rounded && hash_of(parameter.detach().to(mark.dtype)) != mark.hash;
}

// zero_grad() drops a gradient or fills it with zeros.
bool has_gradient(const at::Tensor& parameter) {
  const auto& gradient = parameter.grad();
  if (!gradient.defined()) return false;
  return (gradient.is_sparse() ? gradient._values() : gradient).detach().ne(0).any().item<bool>();
}

enum class Use { step, save };

void refuse_marked(std::string_view user, Use use, const at::Tensor& parameter)
    LOCKSTEP_REQUIRES(marks().mutex) {
  const auto* const mark = marks().find(parameter);
  if (mark == nullptr) return;
  const bool has = has_gradient(parameter);
  if ((has && (use == Use::step || !mark->of_other_wrapper)) || has_changed(parameter, *mark))
    throw_error<Error>("{}: {}", user, *mark->why);
  // A gradient that was dropped before a step has done no harm.
  if (!has) marks().erase(parameter);
}

// Calls no virtual function: this is in every step.
bool is_unwatched(const at::Tensor& parameter) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(parameter);
  return meta != nullptr && meta->grad_.defined() && meta->post_acc_grad_hooks_ == nullptr;
}

void refuse_unwatched(std::string_view user, const std::vector<at::Tensor>& parameters) {
  const MutexLock lock(watches().mutex);
  for (const auto& watch : watches().all) {
    if (watch.thread != std::this_thread::get_id()) continue;
    if (const auto why = watch.why(parameters); !why.empty()) throw_error<Error>("{}: {}", user, why);
  }
}

void refuse(std::string_view user, Use use, const std::vector<at::Tensor>& parameters) {
  if (watches().any.load(std::memory_order_relaxed)) {
    std::vector<at::Tensor> unwatched;
    for (const auto& each : parameters)
      if (is_unwatched(each)) unwatched.push_back(each);
    if (!unwatched.empty()) refuse_unwatched(user, unwatched);
  }
  if (!marks().any.load(std::memory_order_relaxed)) return;
  const MutexLock lock(marks().mutex);
  for (const auto& each : parameters) refuse_marked(user, use, each);
}

}  // namespace

bool mark_unaveraged(const at::Tensor& parameter, std::shared_ptr<const std::string> why) {
  const MutexLock lock(marks().mutex);
  if (const auto* const mark = marks().find(parameter))
    return mark->of_other_wrapper && has_changed(parameter, *mark);
  std::erase_if(marks().all, [](const auto& each) { return each.second.tensor.expired(); });
  marks().all.emplace(parameter.unsafeGetTensorImpl(),
                      Mark{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                           parameter.scalar_type(), hash_of(parameter), std::move(why)});
  marks().any = true;
  return false;
}

void confirm_unaveraged(const at::Tensor& parameter) {
  const MutexLock lock(marks().mutex);
  if (auto* const mark = marks().find(parameter)) mark->of_other_wrapper = false;
}

void unmark_unaveraged(const at::Tensor& parameter) {
  const MutexLock lock(marks().mutex);
  marks().erase(parameter);
}

void unmark_unless_changed(const at::Tensor& parameter) {
  const MutexLock lock(marks().mutex);
  const auto* const mark = marks().find(parameter);
  if (mark != nullptr && (mark->of_other_wrapper || !has_changed(parameter, *mark))) marks().erase(parameter);
}

void forget_changes(const at::Tensor& parameter) {
  const MutexLock lock(marks().mutex);
  auto* const mark = marks().find(parameter);
  if (mark == nullptr) return;
  mark->dtype = parameter.scalar_type();
  mark->hash = hash_of(parameter);
}

std::shared_ptr<void> watch_use(std::function<std::string(const std::vector<at::Tensor>&)> why) {
  const MutexLock lock(watches().mutex);
  const auto place = watches().all.insert(watches().all.end(), Watch{std::move(why)});
  watches().any = true;
  return {nullptr, [place](void*) {
            const MutexLock unlisting(watches().mutex);
            watches().all.erase(place);
            watches().any = !watches().all.empty();
          }};
}

void refuse_step(std::string_view user, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (const auto& group : groups) refuse_step(user, group.params());
}

void refuse_step(std::string_view user, const std::vector<at::Tensor>& parameters) {
  refuse(user, Use::step, parameters);
}

void refuse_save(std::string_view user, const std::vector<at::Tensor>& parameters) {
  refuse(user, Use::save, parameters);
}

}  // namespace lockstep::optim
