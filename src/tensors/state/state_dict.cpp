// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <ostream>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <lockstep/base/log.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "optim/unaveraged.h"
#include "serialize/byte_source.h"
#include "state/renamed_keys.h"

namespace lockstep {
namespace {

using state::with_keys;

struct ModuleTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

// In the order of Python's state_dict(): for each module its parameters, its buffers, then its children. A
// tensor with two names occurs twice.
std::vector<ModuleTensor> module_tensors(const torch::nn::Module& module) {
  std::vector<ModuleTensor> found;
  module.apply([&](const std::string& name, const torch::nn::Module& each) {
    const auto prefix = name.empty() ? name : name + ".";
    for (const auto& item : each.named_parameters(false))
      found.push_back({prefix + item.key(), item.value(), true});
    for (const auto& item : each.named_buffers(false))
      found.push_back({prefix + item.key(), item.value(), false});
  });
  return found;
}

// The numbers that Python's modules have as `_version`.
std::int64_t version_of(const torch::nn::Module& module) {
  using namespace torch::nn;
  if (const auto* const versioned = dynamic_cast<const VersionedModule*>(&module))
    return versioned->version();
  const bool normalizes =
      dynamic_cast<const BatchNorm1dImpl*>(&module) || dynamic_cast<const BatchNorm2dImpl*>(&module) ||
      dynamic_cast<const BatchNorm3dImpl*>(&module) || dynamic_cast<const InstanceNorm1dImpl*>(&module) ||
      dynamic_cast<const InstanceNorm2dImpl*>(&module) || dynamic_cast<const InstanceNorm3dImpl*>(&module);
  return normalizes ? 2 : 1;
}

constexpr std::string_view kWrapped = "module.";
constexpr std::string_view kBatchCount = "num_batches_tracked";

// "NetImpl" is what TORCH_MODULE makes of the user's "Net".
std::string class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name.erase(0, colons + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

bool is_wrapped(const Dict::Item& item) {
  return item.key.is<std::string>() && item.key.as_string().starts_with(kWrapped);
}

PrefixChange wanted_change(const std::vector<ModuleTensor>& own, const Dict& dict) {
  if (own.empty() || dict.empty()) return PrefixChange::none;
  const auto wrapped = [](const ModuleTensor& tensor) { return tensor.name.starts_with(kWrapped); };
  if (std::ranges::all_of(own, wrapped) && std::ranges::none_of(dict, is_wrapped)) return PrefixChange::added;
  if (std::ranges::none_of(own, wrapped) && std::ranges::all_of(dict, is_wrapped))
    return PrefixChange::removed;
  return PrefixChange::none;
}

// The dict's key for a name of the module.
std::string key_for(const std::string& name, PrefixChange change) {
  if (change == PrefixChange::added) return name.substr(kWrapped.size());
  if (change == PrefixChange::removed) return std::string(kWrapped) + name;
  return name;
}

// Before version 2, BatchNorm had no count of batches.
bool may_be_missing(const Dict& dict, const std::string& key) {
  if (!key.ends_with(kBatchCount)) return false;
  const auto* metadata = dict.attributes().find("_metadata");
  if (metadata == nullptr || !metadata->is<Dict>()) return true;
  const auto end = key.size() - kBatchCount.size();
  const auto* of_module = metadata->as_dict().find(key.substr(0, end == 0 ? 0 : end - 1));
  if (of_module == nullptr || !of_module->is<Dict>()) return true;
  const auto* version = of_module->as_dict().find("version");
  return version == nullptr || !version->is<std::int64_t>() || version->as_int() < 2;
}

struct Copy {
  const ModuleTensor* to;
  at::Tensor from;
};

// The copies of a load, and everything that does not fit.
struct Plan {
  std::vector<Copy> copies;
  std::vector<std::string> mismatches;
  LoadReport report;
};

// Before PyTorch 0.4 there were no tensors of no dimensions.
at::Tensor as_saved_long_ago(const at::Tensor& given, const at::Tensor& own) {
  return own.dim() == 0 && given.dim() == 1 && given.size(0) == 1 ? given[0] : given;
}

// Empty: none.
std::string copy_problem(const at::Tensor& given, const at::Tensor& own) {
  if (own.is_meta()) return "the module's tensor is on device meta; call to_empty() first";
  if (given.is_meta()) return "it was loaded without data (map_location meta)";
  return given.layout() == own.layout() ? "" : "its layout differs";
}

void add_entry(Plan& plan, const ModuleTensor& own, const std::string& key, const Value& value,
               bool partial) {
  const auto refuse = [&](std::string reason, std::string mismatch) {
    partial ? plan.report.skipped.push_back({key, std::move(reason)})
            : plan.mismatches.push_back(std::move(mismatch));
  };
  if (!value.is<at::Tensor>() && !value.is<Parameter>()) {
    const auto reason =
        fmt::format("expected torch.Tensor or Tensor-like object from checkpoint but received <class '{}'>",
                    value.type_name());
    return refuse(reason, fmt::format("While copying the parameter named \"{}\", {}", key, reason));
  }
  const auto given = as_saved_long_ago(value.as_tensor(), own.tensor);
  if (const auto reason = copy_problem(given, own.tensor); !reason.empty())
    return refuse(reason, fmt::format("While copying the parameter named \"{}\": {}", key, reason));
  if (given.sizes() != own.tensor.sizes()) {
    const auto shape = fmt::format("[{}]", fmt::join(given.sizes(), ", "));
    const auto own_shape = fmt::format("[{}]", fmt::join(own.tensor.sizes(), ", "));
    return refuse(fmt::format("shape {} instead of {}", shape, own_shape),
                  fmt::format("size mismatch for {}: copying a param with shape torch.Size({}) from "
                              "checkpoint, the shape in current model is torch.Size({}).",
                              key, shape, own_shape));
  }
  plan.copies.push_back({&own, given});
  plan.report.loaded_keys.push_back(own.name);
}

// The index of the innermost module of a key. Python reports unexpected keys by module.
std::size_t place_of(std::string key, const std::vector<std::string>& modules) {
  for (;;) {
    const auto dot = key.rfind('.');
    key.resize(dot == std::string::npos ? 0 : dot);
    const auto found = std::ranges::find(modules, key);
    if (found != modules.end() || key.empty()) return static_cast<std::size_t>(found - modules.begin());
  }
}

Plan make_plan(const torch::nn::Module& module, const std::vector<ModuleTensor>& own, const Dict& dict,
               const LoadStateDictOptions& options) {
  std::vector<std::string> modules;
  module.apply(
      [&](const std::string& name, const torch::nn::Module& /*module*/) { modules.push_back(name); });
  Plan plan;
  plan.report.prefix = wanted_change(own, dict);
  std::unordered_set<const Value*> used;
  for (const auto& tensor : own) {
    const auto key = key_for(tensor.name, plan.report.prefix);
    const auto* value = dict.find(key);
    if (value == nullptr) {
      if (!may_be_missing(dict, key)) plan.report.missing_keys.push_back(tensor.name);
      continue;
    }
    used.insert(value);
    add_entry(plan, tensor, key, *value, options.partial);
  }
  for (const auto& [key, value] : dict) {
    if (used.contains(&value)) continue;
    plan.report.unexpected_keys.push_back(key.is<std::string>() ? key.as_string() : repr(key, 100));
  }
  std::ranges::stable_sort(plan.report.unexpected_keys, {},
                           [&](const std::string& key) { return place_of(key, modules); });
  return plan;
}

// In Python's words.
void refuse_if_unfit(const Plan& plan, const torch::nn::Module& module, bool strict) {
  std::vector<std::string> lines;
  const auto add_keys = [&](std::string_view what, const std::vector<std::string>& keys) {
    if (strict && !keys.empty())
      lines.push_back(fmt::format("{} key(s) in state_dict: \"{}\". ", what, fmt::join(keys, "\", \"")));
  };
  add_keys("Missing", plan.report.missing_keys);
  add_keys("Unexpected", plan.report.unexpected_keys);
  lines.insert(lines.end(), plan.mismatches.begin(), plan.mismatches.end());
  if (lines.empty()) return;
  throw_error<CheckpointError>("Error(s) in loading state_dict for {}:\n\t{}", class_name(module),
                               fmt::join(lines, "\n\t"));
}

void log_prefix(PrefixChange change) {
  if (change == PrefixChange::none) return;
  log(LogLevel::info, change == PrefixChange::added
                          ? "load_state_dict: added \"module.\" to the keys of the checkpoint"
                          : "load_state_dict: removed \"module.\" from the keys of the checkpoint");
}

bool is_state_dict(const Value& value) {
  const auto* dict = value.get_if<Dict>();
  return dict != nullptr && !dict->empty() && std::ranges::all_of(*dict, [](const Dict::Item& item) {
           return item.key.is<std::string>() && (item.value.is<at::Tensor>() || item.value.is<Parameter>());
         });
}

// The state dict that a training checkpoint has among its entries.
const Dict& state_dict_in(const Value& value) {
  if (is_state_dict(value)) return value.as_dict();
  std::vector<std::string> names;
  for (const auto& [key, entry] : value.as_dict()) {
    if (is_state_dict(entry)) names.push_back(repr(key, 100));
  }
  if (names.size() != 1) {
    throw_error<CheckpointError>(
        "load_pretrained: expected a state dict, or a dict of which one entry is a state dict, but {} "
        "entries are ({}); choose one with load() and load_state_dict()",
        names.size(), fmt::join(names, ", "));
  }
  return std::ranges::find_if(value.as_dict(), [](const auto& item) { return is_state_dict(item.value); })
      ->value.as_dict();
}

bool has_safetensors(const std::filesystem::path& file) {
  return file.extension() == ".safetensors" || file.extension() == ".json" ||
         std::filesystem::is_directory(file);
}

// Files need not repeat a tensor for each of its names.
void add_tied_names(Dict& dict, const torch::nn::Module& module) {
  const auto own = module_tensors(module);
  const auto change = wanted_change(own, dict);
  for (const auto& tensor : own) {
    const auto key = key_for(tensor.name, change);
    if (dict.contains(key)) continue;
    for (const auto& other : own) {
      if (!other.tensor.is_same(tensor.tensor)) continue;
      const auto* value = dict.find(key_for(other.name, change));
      if (value == nullptr) continue;
      auto copy = *value;
      dict.set(key, std::move(copy));
      break;
    }
  }
}

}  // namespace

Dict state_dict(ConstModuleRef module) {
  optim::refuse_save("state_dict", module->parameters());
  auto dict = ordered_dict();
  for (auto& entry : module_tensors(module)) dict.set(std::move(entry.name), entry.tensor.detach());
  auto versions = ordered_dict();
  module->apply([&](const std::string& name, const torch::nn::Module& each) {
    versions.set(name, Dict{{"version", version_of(each)}});
  });
  dict.set_attributes(Dict{{"_metadata", std::move(versions)}});
  return dict;
}

LoadReport load_state_dict(ModuleRef module, const Dict& state_dict, const LoadStateDictOptions& options,
                           std::source_location where) {
  const CallerPlace place(where);
  const auto own = module_tensors(module);
  const auto dict = with_keys(state_dict, options);
  auto plan = make_plan(module, own, dict, options);
  if (!options.partial) refuse_if_unfit(plan, module, options.strict);
  log_prefix(plan.report.prefix);
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : plan.copies) {
    at::Tensor target = to->tensor;
    target.copy_(from);
    optim::forget_changes(target);
    if (options.freeze && to->is_parameter) target.set_requires_grad(false);
  }
  return std::move(plan.report);
}

LoadReport load_pretrained(ModuleRef module, const std::filesystem::path& file,
                           const LoadStateDictOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const ErrorFile about(file);
  const auto value = has_safetensors(file) ? Value(safetensors::load_torch_state_dict(file)) : load(file);
  return with_source(file.string(), [&] {
    auto dict = with_keys(state_dict_in(value), options);
    add_tied_names(dict, module);
    auto remaining = options;
    remaining.remove_prefix.clear();
    remaining.add_prefix.clear();
    remaining.rename.clear();
    return load_state_dict(module, dict, remaining);
  });
}

std::ostream& operator<<(std::ostream& stream, const LoadReport& report) {
  stream << fmt::format("{} tensors loaded\n", report.loaded_keys.size());
  if (report.prefix == PrefixChange::removed)
    stream << "\"module.\" was removed from the keys of the state dict\n";
  if (report.prefix == PrefixChange::added) stream << "\"module.\" was added to the keys of the state dict\n";
  for (const auto& key : report.missing_keys) stream << fmt::format("missing in the state dict: {}\n", key);
  for (const auto& key : report.unexpected_keys) stream << fmt::format("not in the module: {}\n", key);
  for (const auto& [key, reason] : report.skipped) stream << fmt::format("skipped: {}: {}\n", key, reason);
  return stream;
}

}  // namespace lockstep
