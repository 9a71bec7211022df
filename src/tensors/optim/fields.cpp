// SPDX-License-Identifier: BSD-3-Clause
#include "optim/fields.h"

#include <cmath>

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/ranges.h>

namespace lockstep::optim {
namespace {

bool is_tensor(const Value& value) { return value.is<at::Tensor>() || value.is<Parameter>(); }

Value tensor_list(const auto& tensors) {
  List list;
  for (const auto& tensor : tensors)
    list.items.push_back(tensor.defined() ? Value(tensor.detach()) : Value(None{}));
  return list;
}

// Python has step counts of SparseAdam as an int.
Value named_value(const at::Tensor& tensor) {
  if (tensor.dim() == 0 && tensor.scalar_type() == at::kLong) return tensor.item<std::int64_t>();
  return tensor.detach();
}

}  // namespace

void Fields::require(const std::string& name) const {
  if (from_->contains(name)) return;
  throw_error<CheckpointError>("{} has no '{}'{}", owner_, name,
                               complete_ ? ": is the checkpoint of another kind of optimizer?" : "");
}

void Fields::count(const char* name, std::int64_t& field) {
  if (writing()) return into_->set(name, field);
  if (reads_all()) require(name);
  read(name, [&](const Value& value) {
    const auto number = serialize::number_of(value);
    constexpr double most = 9e18;
    if (!(std::abs(number) < most)) throw_error<CheckpointError>("{} is not a count", number);
    field = static_cast<std::int64_t>(number);
  });
}

void Fields::steps(const char* name, std::int64_t& field) {
  if (parts_ != nullptr) parts_->steps = &field;
  if (writing()) return into_->set(name, at::scalar_tensor(field, at::kFloat));
  count(name, field);
}

void Fields::steps(const char* name, at::Tensor& field) {
  if (from_ == nullptr) return tensor(name, field);
  std::int64_t steps = 0;
  count(name, steps);
  field = at::full({}, steps, parameter_.options().dtype(at::kFloat).requires_grad(false));
}

void Fields::tensor(const char* name, at::Tensor& field, bool shaped_like_parameter) {
  if (parts_ != nullptr) parts_->tensors.push_back(field);
  if (writing() && field.defined()) into_->set(name, field.detach());
  at::Tensor given;
  read(name, [&given](const Value& value) {
    if (!value.is<None>())
      given = is_tensor(value) ? value.as_tensor() : at::scalar_tensor(serialize::number_of(value));
  });
  if (!given.defined()) return;
  if (shaped_like_parameter) check_shape(name, given, parameter_);
  field = own(given);
}

void Fields::tensors(const char* name, std::deque<at::Tensor>& field) {
  if (parts_ != nullptr) parts_->tensors.insert(parts_->tensors.end(), field.begin(), field.end());
  if (writing()) into_->set(name, tensor_list(field));
  read_items(name, [&](const Value& item) { field.push_back(own(item.as_tensor())); });
}

void Fields::tensors(const char* name, std::optional<std::vector<at::Tensor>>& field) {
  std::deque<at::Tensor> all;
  if (field) all.assign(field->begin(), field->end());
  if (from_ == nullptr && field) return tensors(name, all);
  read_items(name, [&](const Value& item) {
    all.push_back(item.is<None>() ? at::Tensor() : own(item.as_tensor()));
  });
  if (!all.empty()) field.emplace(all.begin(), all.end());
}

void Fields::read_items(const char* name, const std::function<void(const Value&)>& add) {
  read(name, [&](const Value& value) {
    if (value.is<None>()) return;
    for (const auto& item : value.as_items()) add(item);
  });
}

void Fields::named_tensors(std::map<std::string, at::Tensor>& all) {
  if (from_ == nullptr) {
    for (auto& [name, tensor] : all) {
      if (writing()) into_->set(name, named_value(tensor));
      if (parts_ != nullptr) parts_->tensors.push_back(tensor);
    }
    return;
  }
  for (const auto& [name, fresh] : all) require(name);
  for (const auto& [key, value] : *from_) {
    if (value.is<None>()) continue;
    const auto& name = key.as_string();
    const auto found = all.find(name);
    const auto fresh = found == all.end() ? parameter_ : found->second;
    const bool like_fresh = name == "step" || tensors_ == TensorsRead::adopted;
    const auto& like = like_fresh ? fresh : parameter_;
    const auto device = like.is_meta() ? parameter_.device() : like.device();
    auto& tensor = all[name];
    tensor = is_tensor(value) ? own(value.as_tensor(), device, like.scalar_type())
                              : at::scalar_tensor(serialize::number_of(value), fresh.options());
    check_shape(name, tensor, fresh);
  }
}

at::Tensor Fields::own(const at::Tensor& given) const {
  return own(given, parameter_.device(),
             parameter_.is_floating_point() ? parameter_.scalar_type() : given.scalar_type());
}

// The optimizer changes its tensors in place; those that are converted are the caller's.
at::Tensor Fields::own(const at::Tensor& given, at::Device device, at::ScalarType dtype) const {
  const bool adopts = tensors_ == TensorsRead::adopted;
  return given.detach().to(at::TensorOptions(device).dtype(adopts ? given.scalar_type() : dtype),
                           /*non_blocking=*/false, /*copy=*/!adopts);
}

void Fields::check_shape(const std::string& name, const at::Tensor& given, const at::Tensor& like) const {
  if (given.sizes() == like.sizes()) return;
  throw_error<CheckpointError>("{}: {} has shape [{}], but should have [{}]", owner_, name,
                               fmt::join(given.sizes(), ", "), fmt::join(like.sizes(), ", "));
}

}  // namespace lockstep::optim
