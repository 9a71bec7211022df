// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/rules.h"

#include <functional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/util/irange.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "intercept/record.h"

namespace lockstep::tensor_parallel {
namespace {

using at::Tensor;
using Kind = Placement::Kind;

// input x weight^T + bias, as some operator computes it.
struct Product {
  Tensor input;
  Tensor bias;  // may be undefined
  std::function<Tensor(const Tensor& input, const Tensor& bias)> compute;
};

// A stride of a dimension with one element has no meaning.
bool is_laid_out(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (tensor.sizes() != sizes) return false;
  for (int dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) > 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)]) return false;
  return true;
}

Tensor tensor_or_none(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : Tensor(); }

// Whether the value is the weight, or its transpose.
bool is_weight(const c10::IValue& value, const Call& call, bool transposed = false) {
  if (!value.isTensor() || parallel_parameter(value.toTensor()) != &call.parameter) return false;
  const auto rows = call.parameter.part_sizes()[0], columns = call.parameter.part_sizes()[1];
  const at::Tensor& tensor = value.toTensor();
  return transposed ? is_laid_out(tensor, {columns, rows}, {1, columns})
                    : is_laid_out(tensor, {rows, columns}, {columns, 1});
}

// torch::linear() calls linear; LibTorch's modules call addmm for matrices with a bias, otherwise matmul.
std::optional<Product> product_of(const Call& call) {
  const auto& arguments = call.arguments;
  if (call.name == "aten::linear" && is_weight(arguments[1], call)) {
    const auto weight = intercept::without_operator_guard(arguments[1].toTensor());
    return Product{arguments[0].toTensor(), tensor_or_none(arguments[2]),
                   [=](const Tensor& x, const Tensor& bias) { return at::linear(x, weight, bias); }};
  }
  const bool is_matmul = call.name == "aten::matmul" || call.name == "aten::mm";
  if (is_matmul && is_weight(arguments[1], call, true)) {
    const auto weight = intercept::without_operator_guard(arguments[1].toTensor());
    return Product{
        arguments[0].toTensor(), {}, [=](const Tensor& x, const Tensor&) { return at::matmul(x, weight); }};
  }
  if (call.name == "aten::addmm" && is_weight(arguments[2], call, true)) {
    if (arguments[3].toScalar().toDouble() != 1 || arguments[4].toScalar().toDouble() != 1)
      return std::nullopt;
    const auto weight = intercept::without_operator_guard(arguments[2].toTensor());
    return Product{arguments[1].toTensor(), arguments[0].toTensor(),
                   [=](const Tensor& x, const Tensor& bias) {
                     return bias.defined() ? at::addmm(bias, x, weight) : at::mm(x, weight);
                   }};
  }
  return std::nullopt;
}

void check_features(const Tensor& input, std::int64_t expected, const Call& call, const char* style) {
  if (input.dim() > 0 && input.size(-1) == expected) return;
  throw_error<ArgumentError>(
      "{} ({}): an input of shape {}, but this rank needs {} features; set the style's input_layouts to the "
      "layout of what the layer gets",
      call.parameter.name(), style, fmt::join(input.sizes(), "x"), expected);
}

// An optimizer adds a parameter to its gradient, which has the same shape.
bool is_weight_decay(const Call& call) {
  return !c10::GradMode::is_enabled() && call.arguments[0].toTensor().dim() == 1 &&
         call.arguments[2].toScalar().toDouble() != 1;
}

// The rule for a bias that a layer adds to its product: `term` makes of it what is added.
Rule added(std::function<Tensor(const Tensor& bias, const Call& call)> term) {
  return [term = std::move(term)](const Call& call) -> std::optional<Tensor> {
    const bool in_place = call.name == "aten::add_";
    if (!in_place && call.name != "aten::add") return std::nullopt;
    if (!call.arguments[1].isTensor() || parallel_parameter(call.arguments[1].toTensor()) != &call.parameter)
      return std::nullopt;
    if (!call.arguments[0].isTensor() || is_weight_decay(call)) return std::nullopt;
    const auto bias = term(intercept::without_operator_guard(call.arguments[1].toTensor()), call);
    const auto sum = call.arguments[0].toTensor();
    const auto alpha = call.arguments[2].toScalar();
    return in_place ? sum.add_(bias, alpha) : at::add(sum, bias, alpha);
  };
}

}  // namespace

Route colwise_input(Placement layout) {
  return {.from = layout, .to = Replicate(), .gradient_from = Partial(), .gradient_to = layout};
}

Rule colwise_linear(Layouts layouts, std::shared_ptr<SharedInput> shared) {
  return [=](const Call& call) -> std::optional<Tensor> {
    const auto product = product_of(call);
    if (!product) return std::nullopt;
    const auto& group = call.parameter.group();
    const auto features = call.parameter.sizes()[0];
    const auto input = shared ? shared->convert(product->input, group)
                              : redistribute(product->input, group, colwise_input(layouts.input));
    check_features(input, call.parameter.sizes()[1], call, "ColwiseParallel");
    const auto output = product->compute(input, intercept::without_operator_guard(product->bias));
    return redistribute(output, group,
                        {.from = Shard(-1),
                         .to = layouts.output,
                         .gradient_from = layouts.output,
                         .gradient_to = Shard(-1),
                         .from_total = features});
  };
}

Rule colwise_bias(Placement output) {
  return added([=](const Tensor& bias, const Call& call) {
    const auto last = call.arguments[0].toTensor().dim() - 1;
    if (output == Shard(-1) || output == Shard(last)) return bias;
    return redistribute(bias, call.parameter.group(),
                        {.from = Shard(0),
                         .to = Replicate(),
                         .gradient_from = output == Replicate() ? Replicate() : Partial(),
                         .gradient_to = Shard(0),
                         .from_total = call.parameter.sizes()[0]});
  });
}

Rule rowwise_bias() {
  // Each rank adds its share, as in PyTorch, and gets the whole gradient.
  return added([](const Tensor& bias, const Call& call) {
    return intercept::record("BiasShareBackward", {bias}, {bias.detach() / call.parameter.group().size()},
                             [](std::vector<Tensor> gradients) { return gradients; })[0];
  });
}

Rule rowwise_linear(Layouts layouts) {
  return [=](const Call& call) -> std::optional<Tensor> {
    const auto product = product_of(call);
    if (!product) return std::nullopt;
    const auto& group = call.parameter.group();
    const auto input = redistribute(product->input, group,
                                    {.from = layouts.input,
                                     .to = Shard(-1),
                                     .gradient_from = Shard(-1),
                                     .gradient_to = layouts.input,
                                     .to_total = call.parameter.sizes()[1]});
    check_features(input, call.parameter.part_sizes()[1], call, "RowwiseParallel");
    const auto output = redistribute(product->compute(input, {}), group,
                                     {.from = Partial(),
                                      .to = layouts.output,
                                      .gradient_from = gradient_layout(layouts.output),
                                      .gradient_to = Replicate()});
    return product->bias.defined() ? at::add(output, product->bias) : output;
  };
}

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

bool SharedInput::is_result_of(const at::Tensor& input) const {
  const bool records = c10::GradMode::is_enabled() && input.requires_grad();
  return result_.defined() && source_.is_same(input) && version_ == input._version() &&
         result_.requires_grad() == records;
}

at::Tensor SharedInput::convert(const at::Tensor& input, const ProcessGroup& group) {
  if (input.is_inference()) return redistribute(input, group, route_);  // without a version
  if (!is_result_of(input)) {
    result_ = redistribute(input, group, route_);
    source_ = input;
    version_ = static_cast<std::uint32_t>(input._version());
    uses_ = 0;
  }
  const auto result = result_;
  if (++uses_ >= layers_) source_ = result_ = at::Tensor();
  return result;
}

}  // namespace lockstep::tensor_parallel
