// SPDX-License-Identifier: BSD-3-Clause
#include "nn/gradient_sums.h"

#include <utility>

namespace lockstep::nn {
namespace {

using at::Tensor;

// Two parameters may share a gradient tensor, which must then not be changed in place.
bool is_unshared(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.use_count() == 1 && tensor.has_storage() &&
         tensor.storage().use_count() == 1 && tensor.is_non_overlapping_and_dense();
}

void add_to(Tensor& sum, Tensor gradient) {
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (is_unshared(sum) && gradient.layout() == at::kStrided) {
    sum.add_(gradient);
  } else {
    sum = sum + gradient;
  }
}

}  // namespace

GradientSums::GradientSums(std::size_t parameters, std::size_t replicas)
    : replicas_(replicas), slots_(parameters) {
  for (auto& slot : slots_) slot.waiting.resize(replicas);
}

void GradientSums::add_next(Slot& slot) {
  auto gradient = std::exchange(slot.waiting[slot.next++], {});
  if (gradient.defined()) add_to(slot.sum, std::move(gradient));
}

void GradientSums::add(std::size_t replica, std::size_t parameter, Tensor gradient) {
  auto& slot = slots_[parameter];
  const std::lock_guard lock(slot.mutex);
  if (replica < slot.next) {
    add_to(slot.sum, std::move(gradient));
    return;
  }
  add_to(slot.waiting[replica], std::move(gradient));
  while (slot.next < replicas_ && slot.waiting[slot.next].defined()) add_next(slot);
}

std::vector<Tensor> GradientSums::take() {
  std::vector<Tensor> sums;
  for (auto& slot : slots_) {
    while (slot.next < replicas_) add_next(slot);  // past replicas without one
    sums.push_back(std::move(slot.sum));
  }
  return sums;
}

}  // namespace lockstep::nn
