// SPDX-License-Identifier: BSD-3-Clause
#include "modules/module_watch.h"

#include <algorithm>
#include <string_view>

#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include "device/libtorch_versions.h"

namespace lockstep::modules {
namespace {

constexpr const char* kParameter = "parameter";
constexpr const char* kBuffer = "buffer";

// As Tensor::requires_grad().
bool requires_grad(const c10::TensorImpl& tensor) {
  const auto* const meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  return meta != nullptr && (meta->requires_grad_ || meta->grad_fn_);
}

}  // namespace

ModuleWatch::Seen ModuleWatch::look(const char* kind, std::string name, const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  return {.name = std::move(name),
          .kind = kind,
          .tensor = tensor,
          .dtype = tensor.scalar_type(),
          .device = tensor.device(),
          .requires_grad = tensor.requires_grad(),
          .sizes = {sizes.begin(), sizes.end()},
          .strides = {strides.begin(), strides.end()}};
}

ModuleWatch::ModuleWatch(const torch::nn::Module& module, const Accumulators& accumulators)
    : module_(&module), identities_(module, device::ModuleSnapshot::Content::parameters_and_buffers) {
  for (const auto& item : module.named_parameters())
    if (item.value().defined()) seen_.push_back(look(kParameter, item.key(), item.value()));
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) seen_.push_back(look(kBuffer, item.key(), item.value()));
  for (const auto& seen : seen_) pack(seen, accumulators);
}

void ModuleWatch::pack(const Seen& seen, const Accumulators& accumulators) {
  const auto* const tensor = seen.tensor.unsafeGetTensorImpl();
  const auto accumulator = accumulators.find(tensor);
  compared_.push_back({.tensor = tensor,
                       .accumulator = accumulator == accumulators.end() ? nullptr : accumulator->second,
                       .shape = static_cast<std::uint32_t>(shapes_.size()),
                       .dim = static_cast<std::uint32_t>(seen.sizes.size()),
                       .dtype = tensor->dtype(),
                       .device = seen.device,
                       .requires_grad = seen.requires_grad});
  shapes_.insert(shapes_.end(), seen.sizes.begin(), seen.sizes.end());
  shapes_.insert(shapes_.end(), seen.strides.begin(), seen.strides.end());
  lines_.add(tensor, sizeof(c10::TensorImpl));
  if (const auto* const meta = torch::autograd::impl::get_autograd_meta(seen.tensor)) {
    lines_.add(&meta->grad_accumulator_, sizeof(void*));
    lines_.add(&meta->requires_grad_, sizeof(bool));
  }
  lines_.end_group();
}

bool ModuleWatch::has_same_types(const Seen& seen) {
  const auto& tensor = seen.tensor;
  return tensor.scalar_type() == seen.dtype && tensor.device() == seen.device &&
         tensor.strides() == c10::IntArrayRef(seen.strides);
}

// Calls no function of LibTorch: a training step has evicted their code, too.
bool ModuleWatch::is_same(const Compared& compared, bool types) const {
  const auto& tensor = *compared.tensor;
  const auto sizes = tensor.sizes();
  const auto is_equal = [known = shapes_.data() + compared.shape](c10::IntArrayRef values, std::size_t from) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i] != known[from + i]) return false;
    return true;
  };
  return requires_grad(tensor) == compared.requires_grad && sizes.size() == compared.dim &&
         is_equal(sizes, 0) &&
         (compared.accumulator == nullptr || libtorch::accumulator_of(tensor) == compared.accumulator) &&
         (!types || (tensor.dtype() == compared.dtype && tensor.device() == compared.device &&
                     is_equal(tensor.strides(), sizes.size())));
}

bool ModuleWatch::is_unchanged(bool types) const {
  device::ColdLines::Walk walk(lines_);
  for (std::size_t i = 0; i < compared_.size(); ++i) {
    walk.enter(i);
    if (!is_same(compared_[i], types)) return false;
  }
  return identities_.matches(*module_);
}

// Empty if nothing differs.
std::string ModuleWatch::difference(const Seen& seen, bool types) {
  const auto& tensor = seen.tensor;
  const auto was_is = [](const char* what, const auto& was, const auto& is) {
    return fmt::format("{} was {}, is {}", what, was, is);
  };
  if (tensor.sizes() != c10::IntArrayRef(seen.sizes)) {
    return was_is("the shape", fmt::format("[{}]", fmt::join(seen.sizes, ", ")),
                  fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
  }
  if (tensor.requires_grad() != seen.requires_grad)
    return was_is("requires_grad", seen.requires_grad, tensor.requires_grad());
  if (!types || has_same_types(seen)) return "";
  if (tensor.scalar_type() != seen.dtype)
    return was_is("the dtype", c10::toString(seen.dtype), c10::toString(tensor.scalar_type()));
  if (tensor.device() != seen.device) return was_is("the device", seen.device.str(), tensor.device().str());
  return fmt::format("it had the strides [{}], has [{}]", fmt::join(seen.strides, ", "),
                     fmt::join(tensor.strides(), ", "));
}

void ModuleWatch::compare(const char* kind, const torch::OrderedDict<std::string, at::Tensor>& now,
                          bool types, std::vector<ModuleChange>& changes) const {
  const bool is_parameter = std::string_view(kind) == kParameter;
  const auto add = [&](const std::string& name, const std::string& text, bool can_be_followed) {
    changes.push_back({.name = name,
                       .text = fmt::format("{} {}: {}", kind, name, text),
                       .can_be_followed = can_be_followed || !is_parameter});
  };
  for (const auto& seen : seen_) {
    if (std::string_view(seen.kind) != kind) continue;
    const auto* const tensor = now.find(seen.name);
    if (tensor == nullptr || !tensor->defined()) {
      add(seen.name, "it has been removed", false);
    } else if (!tensor->is_same(seen.tensor)) {
      add(seen.name, "it has been replaced by another tensor", false);
    } else if (const auto text = difference(seen, types); !text.empty()) {
      add(seen.name, text, tensor->sizes() == c10::IntArrayRef(seen.sizes));
      changes.back().is_conversion = types && !has_same_types(seen);
    }
  }
  for (const auto& item : now) {
    const auto is_this = [&](const Seen& seen) {
      return std::string_view(seen.kind) == kind && seen.name == item.key();
    };
    if (item.value().defined() && std::ranges::none_of(seen_, is_this))
      add(item.key(), "it has been added", false);
  }
}

std::vector<ModuleChange> ModuleWatch::changes(bool types) const {
  std::vector<ModuleChange> changes;
  compare(kParameter, module_->named_parameters(), types, changes);
  compare(kBuffer, module_->named_buffers(), types, changes);
  if (!changes.empty()) return changes;
  // A layer of LibTorch may compute with a member that is not the registered tensor.
  if (const auto text = identities_.difference(*module_); !text.empty())
    changes.push_back({.name = "", .text = text, .can_be_followed = false});
  return changes;
}

at::Tensor ModuleWatch::like_before(const at::Tensor& tensor) const {
  const auto seen =
      std::ranges::find_if(seen_, [&](const Seen& each) { return each.tensor.is_same(tensor); });
  const auto options = at::TensorOptions().dtype(seen->dtype).device(seen->device);
  return at::empty_strided(seen->sizes, seen->strides, options).zero_();
}

}  // namespace lockstep::modules
