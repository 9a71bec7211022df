// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/trained_parameters.h"

#include <unordered_set>

#include <torch/nn/modules/embedding.h>

namespace lockstep::ddp {

std::vector<TrainedParameter> trained_parameters(const torch::nn::Module& module,
                                                 const std::vector<NamedTensor>& parameters) {
  std::unordered_set<const void*> sparse;
  for (const auto& each : module.modules()) {
    const auto* embedding = each->as<torch::nn::Embedding>();
    if (embedding != nullptr && embedding->options.sparse()) {
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    }
    const auto* bag = each->as<torch::nn::EmbeddingBag>();
    if (bag != nullptr && bag->options.sparse()) sparse.insert(bag->weight.unsafeGetTensorImpl());
  }
  std::vector<TrainedParameter> trained;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    trained.push_back({name, tensor, sparse.contains(tensor.unsafeGetTensorImpl())});
  }
  return trained;
}

}  // namespace lockstep::ddp
