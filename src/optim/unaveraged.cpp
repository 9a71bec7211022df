// SPDX-License-Identifier: BSD-3-Clause
#include "optim/unaveraged.h"

#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <c10/util/intrusive_ptr.h>

#include "base/throw_error.h"

namespace lockstep::optim {
namespace {

struct Mark {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so that no other tensor gets the address
  double sum;                                       // of its values then
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
double sum_of(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const auto values = tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
  return values.sum(at::kDouble).item<double>();
}

bool is_same(double one, double other) {
  return std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
}

void refuse(std::string_view user, const at::Tensor& parameter) {
  auto& all = marks().all;
  const auto found = all.find(parameter.unsafeGetTensorImpl());
  if (found == all.end()) return;
  // A gradient that was dropped before a step has done no harm.
  const auto& mark = found->second;
  if (parameter.grad().defined() || !is_same(sum_of(parameter), mark.sum))
    throw_error<Error>("{}: {}", user, *mark.why);
}

}  // namespace

void mark_unaveraged(const at::Tensor& parameter, std::shared_ptr<const std::string> why) {
  const std::lock_guard lock(marks().mutex);
  const auto* const key = parameter.unsafeGetTensorImpl();
  if (marks().all.contains(key)) return;
  std::erase_if(marks().all, [](const auto& each) { return each.second.tensor.expired(); });
  marks().all.emplace(key, Mark{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                                sum_of(parameter), std::move(why)});
  marks().any = true;
}

void unmark_unaveraged(const at::Tensor& parameter) {
  const std::lock_guard lock(marks().mutex);
  marks().all.erase(parameter.unsafeGetTensorImpl());
  marks().any = !marks().all.empty();
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
