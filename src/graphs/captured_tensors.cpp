// SPDX-License-Identifier: BSD-3-Clause
#include "graphs/captured_tensors.h"

#include <algorithm>
#include <unordered_set>

namespace lockstep::graphs {

TensorLocation::TensorLocation(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  dtype_ = tensor.scalar_type();
  requires_grad_ = tensor.requires_grad();
  sizes_ = tensor.sizes().vec();
  if (tensor.layout() != at::kStrided) return;  // matches nothing
  storage_ = tensor.storage();
  data_ = tensor.const_data_ptr();
  strides_ = tensor.strides().vec();
}

bool TensorLocation::matches(const at::Tensor& now) const {
  if (!now.defined() || !storage_) return !now.defined() && !storage_ && sizes_.empty();
  return now.layout() == at::kStrided && now.const_data_ptr() == data_ && now.scalar_type() == dtype_ &&
         now.requires_grad() == requires_grad_ && now.sizes() == at::IntArrayRef(sizes_) &&
         now.strides() == at::IntArrayRef(strides_);
}

std::vector<TensorLocation> locations_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorLocation> places;
  places.reserve(tensors.size());
  for (const auto& tensor : tensors) places.emplace_back(tensor);
  return places;
}

bool all_match(const std::vector<TensorLocation>& places, const std::vector<at::Tensor>& tensors) {
  return std::ranges::equal(places, tensors, [](const TensorLocation& place, const at::Tensor& tensor) {
    return place.matches(tensor);
  });
}

std::vector<at::Tensor> without_duplicates(const std::vector<at::Tensor>& tensors) {
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
  parameters = without_duplicates(parameters);
  buffers = without_duplicates(buffers);
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
  before_locations_ = locations_of(before_);
}

void CapturedGradients::record_results() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    after_.push_back(parameters_[i].grad());
    is_input_.push_back(!before_[i].defined() || before_locations_[i].matches(after_[i]));
  }
  before_.clear();  // before_locations_ keeps the memory
}

bool CapturedGradients::still_match() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_input_[i] && !before_locations_[i].matches(parameters_[i].grad())) return false;
  }
  return true;
}

void CapturedGradients::assign_results() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = after_[i];
}

void CapturedGradients::restore() const {
  for (std::size_t i = 0; i < before_.size(); ++i) parameters_[i].mutable_grad() = before_[i];
}

}  // namespace lockstep::graphs
