// SPDX-License-Identifier: BSD-3-Clause
#include "nn/replicas_backward.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "base/throw_error.h"
#include "device/libtorch_versions.h"

namespace lockstep::nn {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class ReplicasBackward : public torch::autograd::Node {
 public:
  ReplicasBackward(ReplicasForward forward, std::vector<bool> require_grad, std::int64_t dim,
                   std::shared_ptr<Replicas> replicas)
      : forward_(std::move(forward)),
        require_grad_(std::move(require_grad)),
        dim_(dim),
        replicas_(std::move(replicas)) {}

  std::string name() const override { return "DataParallelBackward"; }

  void release_variables() override { forward_ = {}; }

  // Gradients of the inputs, then of the parameters.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    check_supported();
    const auto cut = scatter_gradients(gradients);
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    GradientSums sums(replicas_->parameters().size(), forward_.outputs.size());
    const auto collected = replicas_->collect_gradients(sums);
    run(cut, keep);
    auto result = input_gradients();
    auto of_parameters = sums.take();
    result.insert(result.end(), of_parameters.begin(), of_parameters.end());
    return result;
  }

 private:
  void check_supported() const {
    if (forward_.outputs.empty()) {
      throw Error("DataParallel: backward through one forward a second time; set retain_graph in the first");
    }
    if (c10::GradMode::is_enabled()) {
      throw Error(
          "DataParallel: backward with create_graph is not supported: second derivatives would be lost");
    }
  }

  // [i][j]: the gradient of output j of replica i; undefined if the output needs none.
  std::vector<Tensors> scatter_gradients(const torch::autograd::variable_list& gradients) const {
    std::vector<Tensors> cut(forward_.outputs.size());
    std::size_t next = 0;
    for (std::size_t j = 0; j < forward_.outputs.front().size(); ++j) {
      Tensors parts;
      for (const auto& outputs : forward_.outputs) parts.push_back(outputs[j]);
      const bool has = require_grad_[j];
      const auto pieces = scatter_gradient(has ? gradients[next++] : Tensor(), parts, dim_);
      for (std::size_t i = 0; i < cut.size(); ++i) cut[i].push_back(pieces[i]);
    }
    return cut;
  }

  void run(const std::vector<Tensors>& gradients, bool keep_graph) {
    if (replicas_->all_on_cpu()) {
      replicas_->run(gradients.size(), [&](std::size_t i) {
        Ends ends;
        add_ends(i, gradients[i], ends);
        ends.backward(keep_graph);
      });
      return;
    }
    // The engine has one thread for each device and runs the devices in parallel. This may be one of its
    // threads, so the pool's threads must not wait for it.
    Ends ends;
    for (std::size_t i = 0; i < gradients.size(); ++i) add_ends(i, gradients[i], ends);
    ends.backward(keep_graph);
  }

  struct Ends {
    Tensors outputs;
    Tensors gradients;
    void backward(bool keep_graph) const {
      if (!outputs.empty()) torch::autograd::backward(outputs, gradients, keep_graph);
    }
  };
  void add_ends(std::size_t i, const Tensors& gradients, Ends& ends) const {
    for (std::size_t j = 0; j < gradients.size(); ++j) {
      if (!gradients[j].defined() || !forward_.outputs[i][j].requires_grad()) continue;
      ends.outputs.push_back(forward_.outputs[i][j]);
      ends.gradients.push_back(gradients[j]);
    }
  }

  torch::autograd::variable_list input_gradients() {
    torch::autograd::variable_list result;
    for (std::size_t k = 0; k < forward_.inputs.front().size(); ++k) {
      Tensors parts;
      bool any = false;
      for (auto& inputs : forward_.inputs) {
        const auto part = std::exchange(inputs[k].mutable_grad(), {});
        any = any || part.defined();
        parts.push_back(part.defined() ? part : at::zeros_like(inputs[k]));
      }
      // On the first replica's device; the engine moves it to the input's.
      result.push_back(any ? gather(parts, parts.front().device(), dim_) : Tensor());
    }
    return result;
  }

  ReplicasForward forward_;
  std::vector<bool> require_grad_;  // [j]: whether output j does
  std::int64_t dim_;
  std::shared_ptr<Replicas> replicas_;
};

// Two parameters may share a gradient tensor, which must then not be changed in place.
bool is_unshared(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.use_count() == 1 && tensor.has_storage() &&
         tensor.storage().use_count() == 1 && tensor.is_non_overlapping_and_dense();
}

void add_to(Tensor& sum, Tensor gradient) {
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (is_unshared(sum) && gradient.layout() == at::kStrided) {
    sum.add_(gradient);
  } else {
    sum = sum + gradient;
  }
}

}  // namespace

void record_backward(const Tensors& gathered, const Tensors& inputs, ReplicasForward forward,
                     std::int64_t dim, std::shared_ptr<Replicas> replicas) {
  std::vector<bool> require_grad(gathered.size());
  for (const auto& outputs : forward.outputs) {
    for (std::size_t j = 0; j < outputs.size(); ++j)
      require_grad[j] = require_grad[j] || outputs[j].requires_grad();
  }
  if (std::ranges::none_of(require_grad, [](bool requires_it) { return requires_it; })) return;
  auto edges = torch::autograd::collect_next_edges(inputs);
  for (const auto& parameter : replicas->parameters()) {
    edges.push_back(parameter.tensor.requires_grad() ? torch::autograd::impl::gradient_edge(parameter.tensor)
                                                     : torch::autograd::Edge());
  }
  const auto node =
      libtorch::make_node<ReplicasBackward>(std::move(forward), require_grad, dim, std::move(replicas));
  node->set_next_edges(std::move(edges));
  for (std::size_t j = 0; j < gathered.size(); ++j) {
    if (require_grad[j]) torch::autograd::set_history(gathered[j], node);
  }
}

std::vector<std::vector<Tensor>> scatter(const std::vector<Tensor>& tensors, std::size_t count,
                                         std::int64_t dim, std::size_t parts_of_none) {
  std::vector<std::vector<Tensor>> parts(tensors.empty() ? parts_of_none : 0);
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const auto dims = tensors[k].dim();
    if (dim < -dims || dim >= dims) {
      throw_error<ArgumentError>(
          "DataParallel: tensor {} of the arguments, [{}], has no dimension {} to scatter along", k,
          fmt::join(tensors[k].sizes(), ", "), dim);
    }
    auto chunks = tensors[k].chunk(static_cast<std::int64_t>(count), dim);
    if (k == 0) parts.resize(chunks.size());
    if (chunks.size() != parts.size()) {
      throw_error<ArgumentError>(
          "DataParallel: tensor 0 of the arguments, [{}], makes {} parts along dimension {}, and tensor {}, "
          "[{}], makes {}",
          fmt::join(tensors[0].sizes(), ", "), parts.size(), dim, k, fmt::join(tensors[k].sizes(), ", "),
          chunks.size());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(std::move(chunks[i]));
  }
  return parts;
}

Tensor gather(const std::vector<Tensor>& parts, c10::Device device, std::int64_t dim) {
  std::vector<Tensor> moved;
  moved.reserve(parts.size());
  for (const auto& part : parts) moved.push_back(part.to(device));
  return parts.front().dim() == 0 ? at::stack(moved) : at::cat(moved, dim);
}

std::vector<Tensor> scatter_gradient(const Tensor& gradient, const std::vector<Tensor>& parts,
                                     std::int64_t dim) {
  std::vector<Tensor> cut(parts.size());
  if (!gradient.defined()) return cut;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].dim() == 0) {
      cut[i] = gradient[static_cast<std::int64_t>(i)].to(parts[i].device());
      continue;
    }
    const auto length = parts[i].size(dim);
    cut[i] = gradient.narrow(dim, begin, length).to(parts[i].device());
    begin += length;
  }
  return cut;
}

GradientSums::GradientSums(std::size_t parameters, std::size_t replicas)
    : replicas_(replicas), slots_(parameters) {
  for (auto& slot : slots_) slot.waiting.resize(replicas);
}

void GradientSums::add_next(Slot& slot) {
  auto gradient = std::exchange(slot.waiting[slot.next++], {});
  if (gradient.defined()) add_to(slot.sum, std::move(gradient));
}

void GradientSums::add(std::size_t replica, std::size_t parameter, Tensor gradient) {
  auto& slot = slots_[parameter];
  const MutexLock lock(slot.mutex);
  if (replica < slot.next) {
    add_to(slot.sum, std::move(gradient));
    return;
  }
  add_to(slot.waiting[replica], std::move(gradient));
  while (slot.next < replicas_ && slot.waiting[slot.next].defined()) add_next(slot);
}

std::vector<Tensor> GradientSums::take() {
  std::vector<Tensor> sums;
  for (auto& slot : slots_) {
    const MutexLock lock(slot.mutex);
    while (slot.next < replicas_) add_next(slot);  // past replicas without one
    sums.push_back(std::move(slot.sum));
  }
  return sums;
}

}  // namespace lockstep::nn
