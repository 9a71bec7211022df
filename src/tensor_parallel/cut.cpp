// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/cut.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "base/throw_error.h"
#include "tensor_parallel/redistribute.h"

namespace lockstep::tensor_parallel {
namespace {

[[noreturn]] void refuse(const Ranks& ranks, const std::string& name, const std::string& what) {
  throw_error<ArgumentError>("{}:{}: parallelize_module(): {} {}", ranks.where.file_name(),
                             ranks.where.line(), name, what);
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

// Whether an earlier call left the parameter as this one would.
bool is_cut_alike(const at::Tensor& parameter, const std::string& name, std::optional<std::int64_t> dim,
                  const Ranks& ranks) {
  const auto* const earlier = parallel_parameter(parameter);
  if (earlier == nullptr) return false;
  const auto earlier_dim = earlier->cut() ? std::optional(earlier->cut()->dim) : std::nullopt;
  if (earlier_dim != dim || earlier->group().backend() != ranks.group.backend()) {
    refuse(ranks, name,
           fmt::format("is already in a plan, as {} {} over group {}; the parts must be the same",
                       earlier->name(), describe(earlier_dim), earlier->group().name()));
  }
  return true;
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

void cut(const at::Tensor& parameter, const std::string& name, std::optional<std::int64_t> dim, Rule rule,
         const Ranks& ranks) {
  if (!is_cut_alike(parameter, name, dim, ranks)) {
    check_new(parameter, name, dim, ranks);
    auto part = parameter.detach().contiguous().clone();
    ranks.group.broadcast(part, 0, ranks.where);
    if (dim) {
      const Chunk own(part.size(*dim), ranks.group.size(), ranks.group.rank());
      part = part.narrow(*dim, own.first, own.count).clone(at::MemoryFormat::Contiguous);
    }
    auto guard = std::make_unique<ParallelParameter>(name, ranks.group, dim, parameter.sizes().vec());
    // Not `part` itself: its storage is that of the memory.
    auto tensor = parameter;
    tensor.set_data(part.detach());
    nn::set_guard(parameter, std::move(guard));
    nn::set_guarded_memory(parameter, part);
  }
  if (rule) parallel_parameter(parameter)->add(std::move(rule));
}

void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const ColwiseParallel& style, const Ranks& ranks, std::shared_ptr<SharedInput> shared) {
  const Layouts layouts{style.input_layouts.value_or(Replicate()), style.output_layouts.value_or(Shard(-1))};
  cut(weight, name + "weight", 0, colwise_linear(layouts, std::move(shared)), ranks);
  if (bias.defined()) cut(bias, name + "bias", 0, colwise_bias(layouts.output), ranks);
}

void cut_linear(const at::Tensor& weight, const at::Tensor& bias, const std::string& name,
                const RowwiseParallel& style, const Ranks& ranks, const std::shared_ptr<SharedInput>&) {
  const Layouts layouts{style.input_layouts.value_or(Shard(-1)), style.output_layouts.value_or(Replicate())};
  if (bias.defined() && layouts.output == Shard(-1))
    refuse(
        ranks, name + "bias",
        "would be added to a part of the features, which RowwiseParallel does not support for output_layouts "
        "Shard(-1); leave the bias out, or redistribute() the output");
  cut(weight, name + "weight", 1, rowwise_linear(layouts), ranks);
  if (!bias.defined() || layouts.output == Replicate()) return;
  // On parts of the output each rank has a part of the bias's gradient.
  cut(bias, name + "bias", std::nullopt, layouts.output == Partial() ? rowwise_bias() : Rule(), ranks);
}

void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const ColwiseParallel& style,
                   const Ranks& ranks) {
  check_embedding(embedding, name, ranks);
  const Layouts layouts{style.input_layouts.value_or(Replicate()), style.output_layouts.value_or(Shard(-1))};
  cut(embedding.weight, name + "weight", 1, colwise_embedding(layouts), ranks);
}

void cut_embedding(torch::nn::EmbeddingImpl& embedding, const std::string& name, const RowwiseParallel& style,
                   const Ranks& ranks) {
  check_embedding(embedding, name, ranks);
  if (embedding.options.scale_grad_by_freq())
    refuse(ranks, name + "weight",
           "is of an Embedding with scale_grad_by_freq, which RowwiseParallel does not support; use "
           "ColwiseParallel");
  const Layouts layouts{style.input_layouts.value_or(Shard(-1)), style.output_layouts.value_or(Replicate())};
  const auto padding_idx = embedding.options.padding_idx().value_or(-1);
  cut(embedding.weight, name + "weight", 0, rowwise_embedding(layouts, padding_idx), ranks);
  // forward() compares it with the part's rows.
  embedding.options.padding_idx(std::nullopt);
}

Ranks ranks_of(const DeviceMesh& mesh, const char* caller, std::source_location where) {
  if (mesh.ndim() != 1) {
    throw_error<ArgumentError>("{}:{}: {}: a mesh of {} dimensions; it needs one, e.g. mesh[\"tp\"]",
                               where.file_name(), where.line(), caller, mesh.ndim());
  }
  return {mesh.get_group(), where};
}

}  // namespace lockstep::tensor_parallel
