// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>
#include <type_traits>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/dropout.h>

#include <lockstep/runtime/default_group.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "intercept/storage_guard.h"
#include "modules/experts.h"
#include "modules/named_tensors.h"
#include "tensor_parallel/cut.h"
#include "tensor_parallel/module_check.h"
#include "tensor_parallel/redistribute.h"
#include "tensor_parallel/sharded_dropout.h"

namespace lockstep::tensor_parallel {
namespace {

struct Target {
  modules::NamedModule named;
  const std::string& pattern;  // that matches its name
  const ParallelStyle& style;
  const Ranks& ranks;
  // PrepareModuleInput: its own. A layer: that of such an entry around it, or nullptr.
  std::shared_ptr<SharedInput> input = nullptr;

  std::string prefix() const { return named.name.empty() ? "" : named.name + "."; }
};

[[noreturn]] void refuse_module(const Target& target, const std::string& what) {
  throw_error<ArgumentError>("{}parallelize_module(): {} \"{}\" {}", line_prefix(target.ranks.where),
                             target.named.module->name(), target.named.name, what);
}

template <class Style>
void check(const Style& style, const Target& target) {
  check_layouts(style, fmt::format("\"{}\"", target.pattern), target.ranks);
  const auto& module = *target.named.module;
  if (module.as<torch::nn::LinearImpl>() != nullptr || module.as<torch::nn::EmbeddingImpl>() != nullptr)
    return;
  constexpr const char* kStyle =
      std::is_same_v<Style, ColwiseParallel> ? "ColwiseParallel" : "RowwiseParallel";
  refuse_module(target, fmt::format("is not supported by {}, which is for Linear and Embedding", kStyle));
}

void check(const SequenceParallel&, const Target& target) {
  const auto modules = target.named.module->modules();
  const auto is_dropout = [](const auto& each) {
    return each->template as<torch::nn::DropoutImpl>() != nullptr;
  };
  if (target.named.module->parameters().empty() && std::ranges::none_of(modules, is_dropout))
    refuse_module(target, "has neither parameters nor a Dropout, so SequenceParallel changes nothing");
}

void check(const PrepareModuleInput& style, const Target& target) {
  check_layouts(style, fmt::format("\"{}\"", target.pattern), target.ranks);
}

bool shares_input(const Target& target) {
  const auto* const style = std::get_if<ColwiseParallel>(&target.style);
  return style != nullptr && !style->input_layouts &&
         target.named.module->as<torch::nn::LinearImpl>() != nullptr;
}

// Gives each layer the input of the innermost module around it that has PrepareModuleInput.
void share_inputs(std::vector<Target>& targets) {
  std::vector<const Target*> prepared;
  for (auto& target : targets) {
    const auto* const style = std::get_if<PrepareModuleInput>(&target.style);
    if (style == nullptr) continue;
    target.input = std::make_shared<SharedInput>(colwise_input(style->input_layouts));
    prepared.push_back(&target);
  }
  std::ranges::stable_sort(prepared, {}, [](const auto* each) { return each->named.name.size(); });
  std::set<const torch::nn::Module*> seen;  // the first entry of a layer decides
  for (auto& target : targets) {
    if (std::holds_alternative<PrepareModuleInput>(target.style)) continue;
    if (!seen.insert(target.named.module).second || !shares_input(target)) continue;
    for (const auto* const outer : prepared)
      if (target.prefix().starts_with(outer->prefix())) target.input = outer->input;
    if (target.input) target.input->add_layer();
  }
  for (const auto* const each : prepared) {
    if (each->input->layers() > 0) continue;
    refuse_module(*each,
                  "has PrepareModuleInput, but the plan has no Linear in it with ColwiseParallel without "
                  "input_layouts, which would share the input");
  }
}

template <class Style>
void plan_cuts(const Style& style, const Target& target, Cuts& cuts) {
  if (const auto* const linear = target.named.module->as<torch::nn::LinearImpl>()) {
    cut_linear(linear->weight, linear->bias, target.prefix(), style, cuts, target.input);
  } else {
    cut_embedding(*target.named.module->as<torch::nn::EmbeddingImpl>(), target.prefix(), style, cuts);
  }
}

void plan_cuts(const PrepareModuleInput&, const Target&, Cuts&) {}  // is part of the layers' rules

void plan_cuts(const SequenceParallel&, const Target& target, Cuts& cuts) {
  for (const auto& module : target.named.module->modules()) {
    if (module->as<torch::nn::DropoutImpl>() != nullptr)
      cuts.then([module, group = target.ranks.group] { draw_apart(module, group); });
  }
  for (const auto& [name, parameter] : modules::distinct(target.named.module->named_parameters()))
    cuts.add(parameter, target.prefix() + name, std::nullopt, {});
}

void check_not_sharded(const torch::nn::Module& module, std::source_location where) {
  for (const auto& parameter : module.named_parameters()) {
    if (intercept::memory_guard_of(parameter.value()) == nullptr) continue;
    throw_error<ArgumentError>(
        "{}parallelize_module(): {} is distributed by fully_shard(), which comes after this function",
        line_prefix(where), parameter.key());
  }
}

void check_experts(const torch::nn::Module& module, const Ranks& ranks) {
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    modules::refuse_experts(
        module, modules::distinct(tensors),
        {.name = "parallelize_module()",
         .group = ranks.group,
         .where = ranks.where,
         .advice = "use another dimension of the mesh, or give a module without experts"});
  }
}

// What all ranks must have alike.
std::string text_of(const ParallelizePlan& plan) {
  std::string lines;
  for (const auto& [pattern, style] : plan) lines += describe_style("\"" + pattern + "\"", style) + "\n";
  return lines;
}

// Checks the plan. Throws ArgumentError.
void plan_cuts(torch::nn::Module& module, const ParallelizePlan& plan, Cuts& cuts) {
  check_not_sharded(module, cuts.ranks().where);
  check_experts(module, cuts.ranks());
  std::vector<Target> targets;
  for (const auto& [pattern, style] : plan) {
    for (const auto& named :
         modules::matching_modules(module, pattern, "parallelize_module()", cuts.ranks().where)) {
      targets.push_back({named, pattern, style, cuts.ranks()});
      std::visit([&](const auto& each) { check(each, targets.back()); }, style);
    }
  }
  share_inputs(targets);
  for (const auto& target : targets)
    std::visit([&](const auto& style) { plan_cuts(style, target, cuts); }, target.style);
}

void broadcast_rest(const torch::nn::Module& module, const Ranks& ranks) {
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& [name, tensor] : modules::distinct(tensors)) {
      if (intercept::has_guard(tensor)) continue;
      const auto copy = tensor.detach().contiguous();
      ranks.group.broadcast(copy, 0, ranks.where);
      if (!copy.is_alias_of(tensor)) tensor.detach().copy_(copy);
    }
  }
}

void broadcast_generator(at::Generator generator, const Ranks& ranks) {
  const std::lock_guard lock(generator.mutex());
  const auto state = generator.get_state();
  const auto bytes = ranks.group.broadcast_object(
      {static_cast<const char*>(state.const_data_ptr()), static_cast<std::size_t>(state.numel())}, 0,
      ranks.where);
  if (ranks.group.rank() == 0) return;
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(state.mutable_data_ptr()));
  generator.set_state(state);
}

}  // namespace

void parallelize_module(ModuleRef module, const DeviceMesh& mesh, const ParallelizePlan& plan,
                        std::source_location where) {
  const CallerPlace place(where);
  Cuts cuts(ranks_of(mesh, "parallelize_module()", where), "parallelize_module()");
  const auto& ranks = cuts.ranks();
  const c10::NoGradGuard no_gradients;
  cuts.make([&] {
    plan_cuts(module, plan, cuts);
    cuts.send("parameter", modules::distinct(module->named_parameters()));
    cuts.send("buffer", modules::distinct(module->named_buffers()));
    return text_of(plan);
  });
  watch_module(module, where);
  broadcast_rest(module, ranks);
  broadcast_generator(default_generator(), ranks);
  const auto parameters = module->parameters();
  if (!parameters.empty() && !parameters[0].device().is_cpu())
    broadcast_generator(at::globalContext().defaultGenerator(parameters[0].device()), ranks);
}

at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, Placement current, Placement target,
                        std::source_location where) {
  const CallerPlace place(where);
  const auto ranks = ranks_of(mesh, "redistribute()", where);
  if (target.kind() == Placement::Kind::partial && current != target) {
    throw_error<ArgumentError>(
        "{}redistribute(): a tensor cannot become Partial(); it is what operators "
        "on parts return",
        line_prefix(where));
  }
  return redistribute(tensor, ranks.group,
                      {current, target, gradient_layout(target), gradient_layout(current)});
}

std::int64_t local_heads(std::int64_t num_heads, const DeviceMesh& mesh, std::source_location where) {
  const CallerPlace place(where);
  const auto ranks = ranks_of(mesh, "local_heads()", where);
  if (num_heads % ranks.group.size() != 0) {
    throw_error<ArgumentError>("{}local_heads(): {} heads cannot be shared equally by {} ranks",
                               line_prefix(where), num_heads, ranks.group.size());
  }
  return num_heads / ranks.group.size();
}

namespace {

// Cuts the tensors of LibTorch's layer, which the caller takes.
template <class Style>
torch::nn::Linear cut_layer(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                            const Style& style, const char* name, std::source_location where) {
  const CallerPlace place(where);
  torch::nn::Linear linear(options);
  const c10::NoGradGuard no_gradients;
  Cuts cuts(ranks_of(mesh, name, where), name);
  cuts.make([&] {
    check_layouts(style, name, cuts.ranks());
    cut_linear(linear->weight, linear->bias, std::string(name) + ".", style, cuts);
    return fmt::format("{}, bias={}\n", describe_style(name, style), linear->bias.defined());
  });
  if (linear->bias.defined() && !intercept::has_guard(linear->bias))
    cuts.ranks().group.broadcast(linear->bias.detach(), 0, where);
  return linear;
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::LinearOptions& options,
                                                   const DeviceMesh& mesh, const ColwiseParallel& style,
                                                   std::source_location where) {
  const auto linear = cut_layer(options, mesh, style, "ColumnParallelLinear", where);
  weight = register_parameter("weight", linear->weight);
  bias = register_parameter("bias", linear->bias, linear->bias.defined());
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  return torch::nn::functional::linear(input, weight, bias);
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::LinearOptions& options, const DeviceMesh& mesh,
                                             const RowwiseParallel& style, std::source_location where) {
  const auto linear = cut_layer(options, mesh, style, "RowParallelLinear", where);
  weight = register_parameter("weight", linear->weight);
  bias = register_parameter("bias", linear->bias, linear->bias.defined());
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  return torch::nn::functional::linear(input, weight, bias);
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options,
                                                       const DeviceMesh& mesh, const RowwiseParallel& style,
                                                       std::source_location where)
    : embedding_(std::make_shared<torch::nn::EmbeddingImpl>(options)) {
  const c10::NoGradGuard no_gradients;
  const CallerPlace place(where);
  constexpr const char* kName = "VocabParallelEmbedding";
  Cuts cuts(ranks_of(mesh, kName, where), kName);
  cuts.make([&] {
    check_layouts(style, kName, cuts.ranks());
    cut_embedding(*embedding_, std::string(kName) + ".", style, cuts);
    return describe_style(kName, style) + "\n";
  });
  weight = register_parameter("weight", embedding_->weight);
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& indices) {
  return embedding_->forward(indices);
}

}  // namespace lockstep::tensor_parallel
