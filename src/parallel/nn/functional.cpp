// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <lockstep/nn/functional.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "intercept/record.h"
#include "runtime/run.h"

namespace lockstep::nn::functional {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// Gradients of complex numbers are often lazy conjugates, which no backend carries.
Tensor resolved(const Tensor& tensor) { return tensor.detach().resolve_conj().resolve_neg(); }

Tensor sent(const Tensor& tensor) { return resolved(tensor).contiguous(); }

Tensor copy_of(const Tensor& tensor) { return resolved(tensor).clone(at::MemoryFormat::Contiguous); }

template <class Make>
Tensors each(const Tensors& tensors, Make make) {
  Tensors made;
  std::ranges::transform(tensors, std::back_inserter(made), make);
  return made;
}

// What a call writes into. The backend writes without autograd's knowledge; a saved tensor must count as
// changed.
Tensor written(const Tensor& tensor) {
  auto output = tensor.detach();
  if (!output.is_inference()) output.unsafeGetTensorImpl()->bump_version();
  return output;
}

// Gloo has no reduce-scatter. The sum is PyTorch's, to the bit.
Tensor sum_of_own(const Tensors& gradients, const ProcessGroup& group, Where where) {
  if (group.backend_name() == "nccl") {
    const auto own = at::empty_like(gradients.front(), at::MemoryFormat::Contiguous);
    return reduce_scatter(own, gradients, ReduceOp::SUM, group, where);
  }
  const auto parts =
      each(gradients, [](const Tensor& like) { return at::empty_like(like, at::MemoryFormat::Contiguous); });
  return at::stack(all_to_all(parts, gradients, group, where)).sum(0);
}

void refuse_second_order(const char* caller) {
  if (!c10::GradMode::is_enabled()) return;
  throw_error<Error>(
      "nn::functional::{}: backward with create_graph is not supported for messages; use a "
      "collective, e.g. all_to_all",
      caller);
}

}  // namespace

Tensor all_reduce(const Tensor& tensor, ReduceOp op, const Group& given, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::all_reduce");
  const auto output = copy_of(tensor);
  group.all_reduce(output, op, where);
  return intercept::record("AllReduceBackward", {tensor}, {output}, [=](Tensors gradients) -> Tensors {
    return {all_reduce(gradients[0], op, group, where)};
  })[0];
}

Tensors all_gather(const Tensor& tensor, const Group& given, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::all_gather");
  const auto input = sent(tensor);
  Tensors outputs;
  for (int i = 0; i < group.size(); ++i) outputs.push_back(at::empty_like(input));
  group.all_gather(outputs, input, where);
  return intercept::record(
      "AllGatherBackward", {tensor}, std::move(outputs),
      [=](Tensors gradients) -> Tensors { return {sum_of_own(gradients, group, where)}; });
}

Tensor reduce_scatter(const Tensor& output, const Tensors& input_list, ReduceOp op, const Group& given,
                      Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::reduce_scatter");
  const auto result = written(output);
  group.reduce_scatter(result, each(input_list, sent), op, where);
  return intercept::record("ReduceScatterBackward", input_list, {result},
                           [=](Tensors gradients) { return all_gather(gradients[0], group, where); })[0];
}

Tensors all_to_all(const Tensors& output_tensor_list, const Tensors& input_tensor_list, const Group& given,
                   Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::all_to_all");
  const auto results = each(output_tensor_list, written);
  group.all_to_all(results, each(input_tensor_list, sent), where);
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& input : input_tensor_list) shapes.push_back(input.sizes().vec());
  return intercept::record("AllToAllBackward", input_tensor_list, results, [=](Tensors gradients) {
    Tensors outputs;
    for (const auto& shape : shapes) outputs.push_back(at::empty(shape, gradients.front().options()));
    return all_to_all(outputs, gradients, group, where);
  });
}

Tensor all_to_all_single(const Tensor& output, const Tensor& input,
                         const std::vector<std::int64_t>& output_split_sizes,
                         const std::vector<std::int64_t>& input_split_sizes, const Group& given,
                         Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::all_to_all_single");
  const auto result = written(output);
  group.all_to_all_single(result, sent(input), output_split_sizes, input_split_sizes, where);
  const auto shape = input.sizes().vec();
  return intercept::record("AllToAllSingleBackward", {input}, {result}, [=](Tensors gradients) -> Tensors {
    const auto received = at::empty(shape, gradients[0].options());
    return {all_to_all_single(received, gradients[0], input_split_sizes, output_split_sizes, group, where)};
  })[0];
}

Tensor broadcast(const Tensor& tensor, int src, const Group& given, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::broadcast");
  const auto output = copy_of(tensor);
  group.broadcast(output, src, where);
  return intercept::record("BroadcastBackward", {tensor}, {output}, [=](Tensors gradients) -> Tensors {
    const auto sum = reduce(gradients[0], src, ReduceOp::SUM, group, where);
    return {group.rank() == src ? sum : sum.zero_()};
  })[0];
}

Tensor reduce(const Tensor& tensor, int dst, ReduceOp op, const Group& given, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::reduce");
  const auto output = copy_of(tensor);
  group.reduce(output, dst, op, where);
  return intercept::record("ReduceBackward", {tensor}, {output}, [=](Tensors gradients) -> Tensors {
    return {broadcast(gradients[0], dst, group, where)};
  })[0];
}

Tensors gather(const Tensor& tensor, int dst, const Group& given, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::gather");
  const auto input = sent(tensor);
  Tensors outputs;
  for (int i = 0; i < group.size(); ++i) outputs.push_back(at::zeros_like(input));
  group.gather(input, group.rank() == dst ? outputs : Tensors{}, dst, where);
  return intercept::record("GatherBackward", {tensor}, std::move(outputs), [=](Tensors gradients) -> Tensors {
    return {scatter(gradients, dst, group, where)};
  });
}

Tensor scatter(const Tensors& tensors, int src, const Group& given, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::scatter");
  if (static_cast<int>(tensors.size()) != group.size()) {
    throw_error<ArgumentError>(
        "nn::functional::scatter: rank {} passes {} tensors; every rank passes one for each of the {} ranks",
        group.rank(), tensors.size(), group.size());
  }
  const auto output = at::zeros_like(tensors.front(), at::MemoryFormat::Contiguous).detach();
  group.scatter(output, group.rank() == src ? each(tensors, sent) : Tensors{}, src, where);
  return intercept::record("ScatterBackward", tensors, {output},
                           [=](Tensors gradients) { return gather(gradients[0], src, group, where); })[0];
}

Tensor send(const Tensor& tensor, int dst, const Group& given, int tag, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::send");
  const auto message = sent(tensor);
  group.send(message, dst, tag, where);
  const auto shape = tensor.sizes().vec();
  return intercept::record("SendBackward", {tensor}, {at::zeros({}, message.options())},
                           [=](Tensors gradients) -> Tensors {
                             refuse_second_order("send");
                             const auto gradient = at::empty(shape, gradients[0].options());
                             group.recv(gradient, dst, tag, where);
                             return {gradient};
                           })[0];
}

Tensor recv(const Tensor& tensor, int src, const Group& given, int tag, Where where) {
  const CallerPlace place(where);
  const auto group = runtime::required_group(given, "nn::functional::recv");
  auto message = written(tensor);
  group.recv(message, src, tag, where);
  const bool differentiable = message.is_floating_point() || message.is_complex();
  if (!c10::GradMode::is_enabled() || !differentiable) return message;
  return intercept::with_history("RecvBackward", {}, {std::move(message)}, [=](Tensors gradients) -> Tensors {
    refuse_second_order("recv");
    group.send(sent(gradients[0]), src, tag, where);
    return {};
  })[0];
}

}  // namespace lockstep::nn::functional
