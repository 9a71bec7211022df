// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/rendezvous/init.h>

#include "nn/converted_layers.h"

namespace lockstep {

void convert_sync_batchnorm(torch::nn::Module& module, std::optional<ProcessGroup> group) {
  const auto ranks = group ? *group : default_group();
  auto layers = module.modules(/*include_self=*/false);
  if (const auto self = module.weak_from_this().lock()) layers.push_back(self);
  for (const auto& layer : layers) {
    if (auto* const ready = layer->as<SyncBatchNorm>()) {
      ready->set_process_group(ranks);
    } else {
      nn::convert_layer(layer, ranks);
    }
  }
}

}  // namespace lockstep
