// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/embedding.h>
#include <c10/util/irange.h>

#include "base/throw_error.h"
#include "tensor_parallel/redistribute.h"
#include "tensor_parallel/rules.h"

namespace lockstep::tensor_parallel {
namespace {

using at::Tensor;

struct Lookup {
  Tensor weight, indices;
  std::int64_t padding_idx;
  bool scale_grad_by_freq, sparse;
};

std::optional<Lookup> lookup_of(const Call& call, Placement input) {
  const auto& arguments = call.arguments;
  if (call.name != "aten::embedding" || parallel_parameter(arguments[0].toTensor()) != &call.parameter)
    return std::nullopt;
  const auto indices =
      redistribute(arguments[1].toTensor(), call.parameter.group(), {input, Replicate(), Replicate(), input});
  return Lookup{intercept::without_operator_guard(arguments[0].toTensor()), indices, arguments[2].toInt(),
                arguments[3].toBool(), arguments[4].toBool()};
}

}  // namespace

Rule colwise_embedding(Layouts layouts) {
  return [=](const Call& call) -> std::optional<Tensor> {
    const auto lookup = lookup_of(call, layouts.input);
    if (!lookup) return std::nullopt;
    const auto output = at::embedding(lookup->weight, lookup->indices, lookup->padding_idx,
                                      lookup->scale_grad_by_freq, lookup->sparse);
    return redistribute(output, call.parameter.group(),
                        {.from = Shard(-1),
                         .to = layouts.output,
                         .gradient_from = layouts.output,
                         .gradient_to = Shard(-1),
                         .from_total = call.parameter.sizes()[1]});
  };
}

Rule rowwise_embedding(Layouts layouts, std::int64_t padding_idx) {
  return [=](const Call& call) -> std::optional<Tensor> {
    const auto lookup = lookup_of(call, layouts.input);
    if (!lookup) return std::nullopt;
    const auto& group = call.parameter.group();
    const auto vocabulary = call.parameter.sizes()[0];
    const Chunk own(vocabulary, group.size(), group.rank());
    const auto is_elsewhere =
        (lookup->indices < own.first).logical_or_(lookup->indices >= own.first + own.count);
    const auto outside = (lookup->indices < 0).logical_or_(lookup->indices >= vocabulary);
    if (lookup->indices.is_cpu() && outside.any().item<bool>()) {
      throw_error<ArgumentError>("{}: an index is outside of the vocabulary of {}", call.parameter.name(),
                                 vocabulary);
    }
    const Route route{Partial(), layouts.output, gradient_layout(layouts.output), Replicate()};
    const bool pads = padding_idx >= own.first && padding_idx < own.first + own.count;
    // A rank without rows has none to look up.
    if (own.count == 0) {
      auto sizes = lookup->indices.sizes().vec();
      sizes.push_back(lookup->weight.size(1));
      const auto none = lookup->weight.new_zeros(sizes) + lookup->weight.sum();
      return redistribute(none, group, route);
    }
    const auto rows = (lookup->indices - own.first).masked_fill_(is_elsewhere, 0);
    const auto found = at::embedding(lookup->weight, rows, pads ? padding_idx - own.first : -1,
                                     lookup->scale_grad_by_freq, lookup->sparse);
    return redistribute(found.masked_fill(is_elsewhere.unsqueeze(-1), 0), group, route);
  };
}

}  // namespace lockstep::tensor_parallel
