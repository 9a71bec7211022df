// SPDX-License-Identifier: BSD-3-Clause
#include "nn/replicas_backward.h"

#include <algorithm>
#include <iterator>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>

#include "nn/scatter_gather.h"

namespace lockstep::nn {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// Whether nothing else can see a change of the tensor: gradients of two inputs may be one tensor.
bool is_nobody_elses(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.use_count() == 1 && tensor.has_storage() &&
         tensor.storage().use_count() == 1 && tensor.is_non_overlapping_and_dense();
}

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
    refuse_what_would_be_wrong();
    const auto cut = scatter_gradients(gradients);
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    const auto count = forward_.outputs.size();
    // The engine has one thread for each device, which may be this very one: workers would wait for it for
    // ever. But it runs several devices at the same time by itself.
    auto found = replicas_->all_on_cpu() ? std::vector<Tensors>(count) : backward_of_all(cut, keep);
    if (replicas_->all_on_cpu()) {
      replicas_->run(count, [&](std::size_t i) { found[i] = backward_of(i, cut[i], keep); });
    }
    auto result = input_gradients(found);
    auto of_parameters = parameter_gradients(found);
    result.insert(result.end(), of_parameters.begin(), of_parameters.end());
    return result;
  }

 private:
  void refuse_what_would_be_wrong() const {
    if (forward_.outputs.empty()) {
      throw Error(
          "DataParallel: backward through the same forward a second time; give retain_graph to the first");
    }
    if (c10::GradMode::is_enabled()) {
      throw Error(
          "DataParallel: backward with create_graph is not supported, since second derivatives would be "
          "lost");
    }
  }

  // [i][j]: of output j of replica i. Those outputs that need none have no gradient.
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

  Tensors targets_of(std::size_t i) const {
    Tensors targets;
    for (const auto& input : forward_.inputs[i]) {
      if (input.requires_grad()) targets.push_back(input);
    }
    for (const auto& parameter : replicas_->parameters_of(i)) {
      if (parameter.tensor.requires_grad()) targets.push_back(parameter.tensor);
    }
    return targets;
  }

  struct Ends {
    Tensors outputs;
    Tensors gradients;
  };
  void add_ends(std::size_t i, const Tensors& gradients, Ends& ends) const {
    for (std::size_t j = 0; j < gradients.size(); ++j) {
      if (!gradients[j].defined() || !forward_.outputs[i][j].requires_grad()) continue;
      ends.outputs.push_back(forward_.outputs[i][j]);
      ends.gradients.push_back(gradients[j]);
    }
  }

  static Tensors gradients_of(const Ends& ends, const Tensors& targets, bool keep_graph) {
    if (ends.outputs.empty() || targets.empty()) return Tensors(targets.size());
    return torch::autograd::grad(ends.outputs, targets, ends.gradients, keep_graph, false, true);
  }

  Tensors backward_of(std::size_t i, const Tensors& gradients, bool keep_graph) const {
    Ends ends;
    add_ends(i, gradients, ends);
    return gradients_of(ends, targets_of(i), keep_graph);
  }

  std::vector<Tensors> backward_of_all(const std::vector<Tensors>& gradients, bool keep_graph) const {
    Ends ends;
    Tensors targets;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      add_ends(i, gradients[i], ends);
      std::ranges::copy(targets_of(i), std::back_inserter(targets));
    }
    const auto all = gradients_of(ends, targets, keep_graph);
    std::vector<Tensors> found;
    auto next = all.begin();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto end = next + static_cast<std::ptrdiff_t>(targets_of(i).size());
      found.emplace_back(next, end);
      next = end;
    }
    return found;
  }

  torch::autograd::variable_list input_gradients(const std::vector<Tensors>& found) const {
    torch::autograd::variable_list result;
    std::size_t position = 0;
    for (std::size_t k = 0; k < forward_.inputs.front().size(); ++k) {
      result.emplace_back();
      if (!forward_.inputs.front()[k].requires_grad()) continue;
      Tensors parts;
      bool any = false;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto& part = found[i][position];
        any = any || part.defined();
        parts.push_back(part.defined() ? part : at::zeros_like(forward_.inputs[i][k]));
      }
      // Of the gathered device; the engine moves it to the input's.
      if (any) result.back() = gather(parts, forward_.inputs.front()[k].device(), dim_);
      ++position;
    }
    return result;
  }

  torch::autograd::variable_list parameter_gradients(std::vector<Tensors>& found) const {
    torch::autograd::variable_list sums(replicas_->parameters().size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      auto position = static_cast<std::size_t>(
          std::ranges::count_if(forward_.inputs[i], [](const auto& input) { return input.requires_grad(); }));
      for (const auto& parameter : replicas_->parameters_of(i)) {
        if (!parameter.tensor.requires_grad()) continue;
        const auto gradient = std::move(found[i][position++]);
        if (!gradient.defined()) continue;
        auto& sum = sums[parameter.original];
        auto here = gradient.to(replicas_->parameters()[parameter.original].tensor.device());
        if (!sum.defined()) {
          sum = std::move(here);
        } else if (is_nobody_elses(sum)) {
          sum.add_(here);
        } else {
          sum = sum + here;
        }
      }
    }
    return sums;
  }

  ReplicasForward forward_;
  std::vector<bool> require_grad_;  // [j]: whether output j does
  std::int64_t dim_;
  std::shared_ptr<Replicas> replicas_;
};

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
      c10::make_intrusive<ReplicasBackward>(std::move(forward), require_grad, dim, std::move(replicas));
  node->set_next_edges(std::move(edges));
  for (std::size_t j = 0; j < gathered.size(); ++j) {
    if (require_grad[j]) torch::autograd::set_history(gathered[j], node);
  }
}

}  // namespace lockstep::nn
