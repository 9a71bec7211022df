// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/changed_modules.h"

// A net that changes while DistributedDataParallel wraps it.
namespace lockstep::testing {

inline constexpr std::int64_t kBatch = 4;  // of each rank

struct NetImpl : torch::nn::Module {
  NetImpl() {
    shift = register_buffer("shift", torch::full({6}, 0.5));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto dtype = last->weight.scalar_type();
    auto h = torch::tanh(first->forward(x.to(first->weight.scalar_type())));
    h = torch::tanh(frozen->forward(h.to(frozen->weight.scalar_type())));
    h = norm->forward(h.to(dtype)) + named_buffers()["shift"].to(dtype);
    return last->forward(h);
  }

  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 6))};
  torch::nn::Linear frozen{register_module("frozen", torch::nn::Linear(6, 6))};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 2))};
  at::Tensor shift;
};
TORCH_MODULE(Net);

using Change = std::function<void(Net&)>;

inline void unfreeze(Net& net) { set_trained(*net->frozen, true); }
inline void freeze(Net& net) { set_trained(*net->first, false); }
inline void freeze_all(Net& net) { set_trained(*net, false); }
inline void to_double(Net& net) { net->to(torch::kDouble); }
inline void transpose_memory(Net& net) {
  net->first->weight.set_data(net->first->weight.detach().t().contiguous().t());
}
inline void reshape_parameter(Net& net) { net->norm->weight.set_data(torch::ones({1, 6})); }
inline void replace_layer(Net& net) { net->replace_module("last", torch::nn::Linear(6, 2)); }
inline void add_parameter(Net& net) { net->register_parameter("added", torch::ones({3})); }
inline void remove_layer(Net& net) { net->unregister_module("norm"); }
inline void replace_member(Net& net) { net->last->weight = torch::ones({2, 6}, torch::requires_grad()); }

struct Way {
  std::string name;
  Change change;
  // The text of the error on all ranks; empty: it is followed.
  std::string refused = {};
  DistributedDataParallelOptions options = {};
  Change later = {};  // a step later
  bool keeps_gradients = false;
  bool accumulates = false;  // the step before is in no_sync()
  double tolerance = 1e-5;
  std::function<void(DistributedDataParallel<Net>&)> prepare = {};
  std::chrono::milliseconds delay{0};  // before the forward of the changed step
};

inline at::Tensor inputs(int step) {
  torch::manual_seed(100 + step);
  return torch::randn({2 * kBatch, 4});
}

inline at::Tensor loss_of(const at::Tensor& output) { return output.to(torch::kDouble).pow(2).mean(); }

}  // namespace lockstep::testing
