// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/graph_search.h"

#include <unordered_set>

namespace lockstep::ddp {

std::vector<std::size_t> find_unreachable(const std::vector<at::Tensor>& outputs, const GradientHooks& hooks,
                                          std::size_t parameters) {
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> to_visit;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const auto& output : outputs) {
    if (!output.requires_grad()) continue;
    visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!to_visit.empty()) {
    Node* const node = to_visit.back();
    to_visit.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<std::size_t> unreachable;
  for (std::size_t i = 0; i < parameters; ++i) {
    if (!seen.contains(hooks.node(i))) unreachable.push_back(i);
  }
  return unreachable;
}

}  // namespace lockstep::ddp
