// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/cut.h"

#include <algorithm>
#include <memory>

#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "modules/agreement.h"
#include "modules/broadcast.h"
#include "tensor_parallel/redistribute.h"

namespace lockstep::tensor_parallel {
namespace {

[[noreturn]] void refuse(const Ranks& ranks, const std::string& name, const std::string& what) {
  throw_error<ArgumentError>("{}parallelize_module(): {} {}", line_prefix(ranks.where), name, what);
}

void check_new(const at::Tensor& parameter, const std::string& name, std::optional<std::int64_t> dim,
               const Ranks& ranks) {
  if (parameter.grad().defined())
    refuse(ranks, name, "has a gradient; call zero_grad(), or this function before the first backward");
  if (torch::autograd::impl::try_get_grad_accumulator(parameter))
    refuse(
        ranks, name,
        "has hooks or a graph that use it whole; call this function before DistributedDataParallel and the "
        "first forward");
  if (dim && *dim >= parameter.dim())
    refuse(ranks, name,
           fmt::format("has {} dimensions, so dimension {} cannot be cut", parameter.dim(), *dim));
}

std::string describe(const std::optional<std::int64_t>& dim) {
  return dim ? fmt::format("along dimension {}", *dim) : "for parts of a sequence";
}

std::string text_of(const std::optional<Placement>& layout) {
  if (!layout) return "default";
  switch (layout->kind()) {
    case Placement::Kind::replicate:
      return "Replicate()";
    case Placement::Kind::partial:
      return "Partial()";
    case Placement::Kind::shard:
      break;
  }
  return fmt::format("Shard({})", layout->dim());
}

std::string text_of(const ColwiseParallel& style) {
  return fmt::format("ColwiseParallel input_layouts={} output_layouts={}", text_of(style.input_layouts),
                     text_of(style.output_layouts));
}

std::string text_of(const RowwiseParallel& style) {
  return fmt::format("RowwiseParallel input_layouts={} output_layouts={}", text_of(style.input_layouts),
                     text_of(style.output_layouts));
}

std::string text_of(const SequenceParallel&) { return "SequenceParallel"; }

std::string text_of(const PrepareModuleInput& style) {
  return fmt::format("PrepareModuleInput input_layouts={}", text_of(std::optional(style.input_layouts)));
}

void check_embedding(const torch::nn::EmbeddingImpl& embedding, const std::string& name, const Ranks& ranks) {
  if (!embedding.options.max_norm()) return;
  refuse(ranks, name + "weight",
         "is of an Embedding with max_norm, whose forward changes whole rows; leave max_norm out");
}

void refuse_partial(const std::optional<Placement>& layout, const char* option, const std::string& name,
                    const Ranks& ranks) {
  if (layout != Partial()) return;
  refuse(ranks, name,
         fmt::format("has {} = Partial()}}; only the output_layouts of RowwiseParallel can be Partial(), so "
                     "change the tensor's layout with redistribute()",
                     option));
}

// "parameter fc1.weight Float[4, 3] on cpu, a part": what ranks must have alike.
std::string describe_whole(const std::string& kind, const modules::NamedTensor& item) {
  const auto& [name, tensor] = item;
  const auto* const part = parallel_parameter(tensor);
  if (part == nullptr) return modules::describe(kind, item);
  return fmt::format("{} {}\t{}[{}] on {}, a part", kind, name, c10::toString(tensor.scalar_type()),
                     fmt::join(part->sizes(), ", "), c10::DeviceTypeName(tensor.device().type(), true));
}

}  // namespace

void check_layouts(const ColwiseParallel& style, const std::string& name, const Ranks& ranks) {
  refuse_partial(style.input_layouts, "ColwiseParallel{.input_layouts", name, ranks);
  refuse_partial(style.output_layouts, "ColwiseParallel{.output_layouts", name, ranks);
}

void check_layouts(const RowwiseParallel& style, const std::string& name, const Ranks& ranks) {
  refuse_partial(style.input_layouts, "RowwiseParallel{.input_layouts", name, ranks);
}

void check_layouts(const PrepareModuleInput& style, const std::string& name, const Ranks& ranks) {
  refuse_partial(style.input_layouts, "PrepareModuleInput{.input_layouts", name, ranks);
  if (style.desired_input_layouts == Replicate()) return;
  refuse(ranks, name,
         "has a PrepareModuleInput whose desired_input_layouts are not Replicate(), which is what "
         "ColwiseParallel layers compute with");
}

void Cuts::add(const at::Tensor& parameter, const std::string& name, std::optional<std::int64_t> dim,
               Rule rule) {
  if (!is_cut_alike(parameter, name, dim)) check_new(parameter, name, dim, ranks_);
  planned_.push_back({parameter, name, dim, std::move(rule)});
}

// Whether an earlier call left the parameter as this one would, or this call already has it.
bool Cuts::is_cut_alike(const at::Tensor& parameter, const std::string& name,
                        std::optional<std::int64_t> dim) const {
  const auto refuse_other = [&](const std::string& earlier, std::optional<std::int64_t> earlier_dim,
                                const ProcessGroup& group) {
    if (earlier_dim == dim && group.backend() == ranks_.group.backend()) return;
    refuse(ranks_, name,
           fmt::format("is already in a plan, as {} {} over group {}; the parts must be the same", earlier,
                       describe(earlier_dim), group.name()));
  };
  const auto known =
      std::ranges::find_if(planned_, [&](const Planned& each) { return each.parameter.is_same(parameter); });
  if (known != planned_.end()) {
    refuse_other(known->name, known->dim, ranks_.group);
    return true;
  }
  const auto* const earlier = parallel_parameter(parameter);
  if (earlier == nullptr) return false;
  refuse_other(earlier->name(), earlier->cut() ? std::optional(earlier->cut()->dim) : std::nullopt,
               earlier->group());
  return true;
}

std::string Cuts::text() const {
  std::string lines;
  for (const auto& [parameter, name, dim, rule] : planned_) {
    lines += fmt::format("{}, cut {}{}\n", describe_whole("parameter", {name, parameter}), describe(dim),
                         parameter.requires_grad() ? "" : ", no gradient");
  }
  return lines;
}

void Cuts::send(const std::string& kind, const std::vector<modules::NamedTensor>& tensors) {
  for (const auto& each : tensors) {
    sent_text_ += describe_whole(kind, each) + "\n";
    if (parallel_parameter(each.tensor) == nullptr) sent_.push_back(each);
  }
}

void Cuts::make(const std::function<std::string()>& plan) {
  auto lines = modules::tell_on_failure({ranks_.group}, caller_, ranks_.where, plan);
  modules::check_same_on_all_ranks(
      ranks_.group,
      {.user = line_prefix(ranks_.where) + caller_,
       .lines = std::move(lines) + text() + sent_text_,
       .advice = "Make the same calls for the same module with the same plan on every rank"},
      ranks_.where);
  modules::check_can_be_sent(ranks_.group, caller_, sent_);
  for (auto& each : planned_) make(each);
  for (const auto& change : then_) change();
}

void Cuts::make(Planned& planned) const {
  auto& [parameter, name, dim, rule] = planned;
  if (parallel_parameter(parameter) == nullptr) {
    auto part = parameter.detach().contiguous().clone();
    ranks_.group.broadcast(part, 0, ranks_.where);
    if (dim) {
      const Chunk own(part.size(*dim), ranks_.group.size(), ranks_.group.rank());
      part = part.narrow(*dim, own.first, own.count).clone(at::MemoryFormat::Contiguous);
    }
    auto guard =
        std::make_unique<ParallelParameter>(name, ranks_.group, dim, parameter.sizes().vec(), ranks_.where);
    // Not `part` itself: its storage is that of the memory.
    parameter.set_data(part.detach());
    intercept::set_guard(parameter, std::move(guard));
    intercept::set_guarded_memory(parameter, part);
  }
  if (rule) parallel_parameter(parameter)->add(std::move(rule));
}

std::string describe_style(const std::string& name, const ParallelStyle& style) {
  return fmt::format("{}: {}", name, std::visit([](const auto& each) { return text_of(each); }, style));
}

void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const ColwiseParallel& style, Cuts& cuts, std::shared_ptr<SharedInput> shared) {
  const Layouts layouts{style.input_layouts.value_or(Replicate()), style.output_layouts.value_or(Shard(-1))};
  cuts.add(weight, name + "weight", 0, colwise_linear(layouts, std::move(shared)));
  if (bias.defined()) cuts.add(bias, name + "bias", 0, colwise_bias(layouts.output));
}

void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const RowwiseParallel& style, Cuts& cuts, const std::shared_ptr<SharedInput>&) {
  const Layouts layouts{style.input_layouts.value_or(Shard(-1)), style.output_layouts.value_or(Replicate())};
  if (bias.defined() && layouts.output == Shard(-1))
    refuse(
        cuts.ranks(), name + "bias",
        "would be added to a part of the features, which RowwiseParallel does not support for output_layouts "
        "Shard(-1); leave the bias out, or redistribute() the output");
  cuts.add(weight, name + "weight", 1, rowwise_linear(layouts));
  if (!bias.defined() || layouts.output == Replicate()) return;
  // On parts of the output each rank has a part of the bias's gradient.
  cuts.add(bias, name + "bias", std::nullopt, layouts.output == Partial() ? rowwise_bias() : Rule());
}

void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const ColwiseParallel& style,
                   Cuts& cuts) {
  check_embedding(embedding, name, cuts.ranks());
  const Layouts layouts{style.input_layouts.value_or(Replicate()), style.output_layouts.value_or(Shard(-1))};
  cuts.add(embedding.weight, name + "weight", 1, colwise_embedding(layouts));
}

void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const RowwiseParallel& style,
                   Cuts& cuts) {
  check_embedding(embedding, name, cuts.ranks());
  if (embedding.options.scale_grad_by_freq())
    refuse(cuts.ranks(), name + "weight",
           "is of an Embedding with scale_grad_by_freq, which RowwiseParallel does not support; use "
           "ColwiseParallel");
  const Layouts layouts{style.input_layouts.value_or(Shard(-1)), style.output_layouts.value_or(Replicate())};
  const auto padding_idx = embedding.options.padding_idx().value_or(-1);
  cuts.add(embedding.weight, name + "weight", 0, rowwise_embedding(layouts, padding_idx));
  // forward() compares it with the part's rows.
  cuts.then([&embedding] { embedding.options.padding_idx(std::nullopt); });
}

Ranks ranks_of(const DeviceMesh& mesh, const char* caller, std::source_location where) {
  if (mesh.ndim() != 1) {
    throw_error<ArgumentError>("{}{}: a mesh of {} dimensions; it needs one, e.g. mesh[\"tp\"]",
                               line_prefix(where), caller, mesh.ndim());
  }
  return {mesh.get_group(), where};
}

}  // namespace lockstep::tensor_parallel
