// SPDX-License-Identifier: BSD-3-Clause
#include "device/graph_places.h"

#include <algorithm>
#include <unordered_set>

namespace lockstep::graphs {

Place::Place(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  dtype_ = tensor.scalar_type();
  requires_grad_ = tensor.requires_grad();
  sizes_ = tensor.sizes().vec();
  if (tensor.layout() != at::kStrided) return;  // never holds
  storage_ = tensor.storage();
  data_ = tensor.const_data_ptr();
  strides_ = tensor.strides().vec();
}

bool Place::holds(const at::Tensor& now) const {
  if (!now.defined() || !storage_) return !now.defined() && !storage_ && sizes_.empty();
  return now.layout() == at::kStrided && now.const_data_ptr() == data_ && now.scalar_type() == dtype_ &&
         now.requires_grad() == requires_grad_ && now.sizes() == at::IntArrayRef(sizes_) &&
         now.strides() == at::IntArrayRef(strides_);
}

std::vector<Place> places_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Place> places;
  places.reserve(tensors.size());
  for (const auto& tensor : tensors) places.emplace_back(tensor);
  return places;
}

bool all_hold(const std::vector<Place>& places, const std::vector<at::Tensor>& tensors) {
  return std::ranges::equal(places, tensors,
                            [](const Place& place, const at::Tensor& tensor) { return place.holds(tensor); });
}

std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> once;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back(tensor);
  }
  return once;
}

ModuleParts::ModuleParts(const std::vector<std::shared_ptr<torch::nn::Module>>& roots) {
  for (const auto& root : roots) {
    for (auto& module : root->modules()) modules.push_back(std::move(module));
    for (auto& tensor : root->parameters()) parameters.push_back(std::move(tensor));
    for (auto& tensor : root->buffers()) buffers.push_back(std::move(tensor));
  }
  parameters = each_once(parameters);
  buffers = each_once(buffers);
}

std::vector<bool> ModuleParts::modes() const {
  std::vector<bool> training;
  training.reserve(modules.size());
  for (const auto& module : modules) training.push_back(module->is_training());
  return training;
}

CapturedGradients::CapturedGradients(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  for (const auto& parameter : parameters_) before_.push_back(parameter.grad());
  needed_ = places_of(before_);
}

void CapturedGradients::captured() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    after_.push_back(parameters_[i].grad());
    matters_.push_back(!before_[i].defined() || needed_[i].holds(after_[i]));
  }
  before_.clear();  // their memory stays with `needed_`
}

bool CapturedGradients::fit() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (matters_[i] && !needed_[i].holds(parameters_[i].grad())) return false;
  }
  return true;
}

void CapturedGradients::deliver() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = after_[i];
}

void CapturedGradients::restore() const {
  for (std::size_t i = 0; i < before_.size(); ++i) parameters_[i].mutable_grad() = before_[i];
}

}  // namespace lockstep::graphs
