// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/base/error.h>
#include <lockstep/nn/sync_batch_norm.h>

#include "nn/converted_layers.h"

namespace lockstep {

void convert_sync_batchnorm(torch::nn::Module& module, std::optional<ProcessGroup> group) {
  auto layers = module.modules(/*include_self=*/false);
  if (const auto self = module.weak_from_this().lock()) {
    layers.push_back(self);
  } else if (layers.empty()) {
    throw ArgumentError(
        "convert_sync_batchnorm: a layer that is in no shared_ptr or holder cannot be followed");
  }
  for (const auto& layer : layers) {
    if (auto* const ready = layer->as<SyncBatchNorm>()) {
      ready->set_process_group(group);
    } else {
      nn::convert_layer(layer, group);
    }
  }
}

}  // namespace lockstep
