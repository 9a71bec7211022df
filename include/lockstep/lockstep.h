// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Everything at once, LibTorch included.
#include <torch/torch.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/amp/memory_format.h>
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/world.h>
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/epoch_checkpoint.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/checkpoint/reduce_lr_on_plateau.h>
#include <lockstep/checkpoint/starting_weights.h>
#include <lockstep/checkpoint/step_lr.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/data/data.h>
#include <lockstep/ddp/activation_checkpoint.h>
#include <lockstep/ddp/broadcast_module.h>
#include <lockstep/ddp/clip_grad.h>
#include <lockstep/ddp/comm_hooks.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/freeze.h>
#include <lockstep/ddp/local_sgd.h>
#include <lockstep/ddp/powersgd.h>
#include <lockstep/ddp/trace.h>
#include <lockstep/device/device.h>
#include <lockstep/device/graphed_step.h>
#include <lockstep/device/keep_freed_memory.h>
#include <lockstep/nn/data_parallel.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/optim/fused_adam.h>
#include <lockstep/optim/fused_sgd.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/rendezvous/random.h>
#include <lockstep/rendezvous/spawn.h>
#include <lockstep/rendezvous/spawn_threads.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>
