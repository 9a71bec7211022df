// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <lockstep/serialize/value.h>

namespace lockstep {

/// {"state": {0: {...}, ...}, "param_groups": [{"lr": ..., "params": [0, ...]}, ...]}: what Python's
/// optimizer of the same name gives, with every key that it looks for. Tensors share the optimizer's data.
/// Knows SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS, and FusedSGD, FusedAdam, FusedAdamW; throws ArgumentError
/// for others. PyTorch: `Optimizer.state_dict()`.
Dict state_dict(const torch::optim::Optimizer& optimizer);

/// Takes over state and hyper-parameters from a state dict of C++ or Python; tensors are copied, to the
/// device and dtype of their parameter. What has no bearing on the result (foreach, fused, capturable,
/// initial_lr, ...) is passed over. PyTorch: `Optimizer.load_state_dict()`. Throws CheckpointError, the
/// optimizer being unchanged: other numbers of groups or parameters, tensors of another shape, the state of
/// another kind of optimizer, maximize=True for one that is not fused.
void load_state_dict(torch::optim::Optimizer& optimizer, const Dict& state_dict);

/// {"last_epoch", "_step_count", "_last_lr"}, of StepLR and any other scheduler derived from LRScheduler. Its
/// learning rates are in the optimizer's state dict. PyTorch: `LRScheduler.state_dict()`.
Dict state_dict(const torch::optim::LRScheduler& scheduler);

/// Takes over "last_epoch", the number of calls of step(), from C++ or Python. (LibTorch's own StepLR lowers
/// the rate one call later than Python's, with or without checkpoints.)
void load_state_dict(torch::optim::LRScheduler& scheduler, const Dict& state_dict);

}  // namespace lockstep
