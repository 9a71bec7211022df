// SPDX-License-Identifier: BSD-3-Clause
#include "optim/unaveraged.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include "base/throw_error.h"

namespace lockstep::optim {
namespace {

struct Mark {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so that no other tensor gets the address
  at::ScalarType dtype;
  std::size_t hash;  // of its values then
  std::shared_ptr<const std::string> why;
};

struct Marks {
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Mark> all;
};

Marks& marks() {
  static Marks marks;
  return marks;
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

void refuse(std::string_view user, const at::Tensor& parameter) {
  auto& all = marks().all;
  const auto found = all.find(parameter.unsafeGetTensorImpl());
  if (found == all.end()) return;
  // A gradient that was dropped before a step has done no harm.
  const auto& mark = found->second;
  if (parameter.grad().defined() || has_changed(parameter, mark))
    throw_error<Error>("{}: {}", user, *mark.why);
}

}  // namespace

void mark_unaveraged(const at::Tensor& parameter, std::shared_ptr<const std::string> why) {
  const std::lock_guard lock(marks().mutex);
  const auto* const key = parameter.unsafeGetTensorImpl();
  if (marks().all.contains(key)) return;
  std::erase_if(marks().all, [](const auto& each) { return each.second.tensor.expired(); });
  marks().all.emplace(key, Mark{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                                parameter.scalar_type(), hash_of(parameter), std::move(why)});
  marks().any = true;
}

void unmark_unaveraged(const at::Tensor& parameter) {
  const std::lock_guard lock(marks().mutex);
  marks().all.erase(parameter.unsafeGetTensorImpl());
  marks().any = !marks().all.empty();
}

void unmark_unless_changed(const at::Tensor& parameter) {
  {
    const std::lock_guard lock(marks().mutex);
    const auto found = marks().all.find(parameter.unsafeGetTensorImpl());
    if (found == marks().all.end() || has_changed(parameter, found->second)) return;
  }
  unmark_unaveraged(parameter);
}

void refuse_unaveraged(std::string_view user, const std::vector<at::Tensor>& parameters) {
  if (!marks().any.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(marks().mutex);
  for (const auto& parameter : parameters) refuse(user, parameter);
}

void refuse_unaveraged(std::string_view user, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (const auto& group : groups) refuse_unaveraged(user, group.params());
}

}  // namespace lockstep::optim
