// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/split_backward.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::pipelining {
namespace {

using at::Tensor;
using torch::autograd::Edge;
using torch::autograd::Node;
using Tensors = std::vector<Tensor>;

// Whether the inputs can be reached from each node below the roots.
class InputSide {
 public:
  InputSide(const std::vector<Edge>& roots, const std::vector<Edge>& inputs) {
    for (const auto& input : inputs) reaches_[input.function.get()] = true;
    for (const auto& root : roots) visit(root.function.get());
  }

  bool contains(const Node* node) const {
    const auto found = reaches_.find(node);
    return found != reaches_.end() && found->second;
  }

  // Nodes that pass gradients to inputs and to parameters.
  std::vector<Edge> forks() const {
    std::vector<Edge> found;
    std::unordered_set<const Node*> seen;
    for (const auto& edge : inner_) {
      if (!seen.insert(edge.function.get()).second || !contains(edge.function.get())) continue;
      for (const auto& next : edge.function->next_edges()) {
        if (!next.is_valid() || contains(next.function.get())) continue;
        found.push_back(edge);
        break;
      }
    }
    return found;
  }

  void add_root(const Edge& root) { inner_.push_back(root); }

 private:
  // Without recursion: graphs are deep.
  void visit(Node* root) {
    std::vector<std::pair<Node*, std::size_t>> path{{root, 0}};
    if (!reaches_.try_emplace(root, false).second) return;
    while (!path.empty()) {
      auto& [node, position] = path.back();
      if (position == node->num_outputs()) {
        const bool reaches = reaches_[node];
        path.pop_back();
        if (reaches && !path.empty()) reaches_[path.back().first] = true;
        continue;
      }
      const auto& next = node->next_edge(position++);
      if (!next.is_valid()) continue;
      inner_.push_back(next);
      const auto [found, fresh] = reaches_.try_emplace(next.function.get(), false);
      if (fresh) {
        path.emplace_back(next.function.get(), 0);
      } else if (found->second) {
        reaches_[node] = true;
      }
    }
  }

  std::unordered_map<const Node*, bool> reaches_;
  std::vector<Edge> inner_;
};

class KeepGradients : public torch::autograd::FunctionPreHook {
 public:
  explicit KeepGradients(Tensors& kept) : kept_(kept) {}
  Tensors operator()(const Tensors& gradients) override {
    kept_ = gradients;
    return gradients;
  }

 private:
  Tensors& kept_;
};

Tensors execute(const std::vector<Edge>& roots, const Tensors& gradients, const std::vector<Edge>& inputs) {
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, true, false, false, inputs);
}

}  // namespace

void SplitBackward::keep(const Edge& edge, const Tensor& gradient) {
  edges_.push_back(edge);
  gradients_.push_back(gradient);
}

Tensors SplitBackward::input_part(const Tensors& outputs, const Tensors& gradients, const Tensors& inputs) {
  std::vector<Edge> roots, input_edges;
  Tensors root_gradients;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    root_gradients.push_back(gradients[i]);
  }
  for (const auto& input : inputs)
    if (input.requires_grad()) input_edges.push_back(torch::autograd::impl::gradient_edge(input));

  InputSide side(roots, input_edges);
  std::vector<Edge> through;
  Tensors through_gradients;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (side.contains(roots[i].function.get())) {
      side.add_root(roots[i]);
      through.push_back(roots[i]);
      through_gradients.push_back(root_gradients[i]);
    } else {
      keep(roots[i], root_gradients[i]);
    }
  }
  Tensors result(inputs.size());
  if (through.empty()) return result;

  const auto forks = side.forks();
  std::vector<Tensors> kept(forks.size());
  for (std::size_t i = 0; i < forks.size(); ++i)
    forks[i].function->add_pre_hook(std::make_unique<KeepGradients>(kept[i]));
  const auto found = execute(through, through_gradients, input_edges);
  for (std::size_t i = 0, next = 0; i < inputs.size(); ++i)
    if (inputs[i].requires_grad()) result[i] = found[next++];

  for (std::size_t i = 0; i < forks.size(); ++i) {
    auto& node = *forks[i].function;
    // The kept gradients have passed these hooks.
    node.pre_hooks().clear();
    node.tensor_pre_hooks().clear();
    // The weight part must not go to the inputs again.
    for (auto& next : node.next_edges())
      if (next.is_valid() && side.contains(next.function.get())) next = Edge();
    for (std::size_t k = 0; k < kept[i].size(); ++k)
      if (kept[i][k].defined()) keep(Edge(forks[i].function, static_cast<std::uint32_t>(k)), kept[i][k]);
  }
  return result;
}

void SplitBackward::weight_part() {
  const auto edges = std::exchange(edges_, {});
  const auto gradients = std::exchange(gradients_, {});
  if (edges.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(edges, gradients, false, false, true);
}

}  // namespace lockstep::pipelining
