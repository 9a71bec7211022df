// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Process groups and parallel training, and LibTorch: Lockstep::distributed. lockstep/lockstep.h is this and the
// kit.
#include <torch/torch.h>

// Joining a run, starting ranks, the default group.
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/world.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/collectives.h>
#include <lockstep/runtime/collectives_by_name.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/runtime/typed_objects.h>
#include <lockstep/spawn/spawn.h>
#include <lockstep/version.h>

// Process groups and collectives.
#include <lockstep/backends/backends.h>
#include <lockstep/comm/process_group.h>
#include <lockstep/node/call_record.h>

// Data-parallel training.
#include <lockstep/ddp/activation_checkpoint.h>
#include <lockstep/ddp/comm_hooks.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/join.h>
#include <lockstep/ddp/step_verifier.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/nn/data_parallel.h>
#include <lockstep/nn/functional.h>
#include <lockstep/nn/mixture_of_experts.h>
#include <lockstep/nn/model_parallel.h>
#include <lockstep/nn/swa_utils.h>
#include <lockstep/nn/sync_batch_norm.h>
#include <lockstep/nn/wrapped_module.h>

// Sharded, pipeline, tensor and context parallel.
#include <lockstep/context_parallel/context_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/fsdp/memory_report.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/pipelining/schedule.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

// Optimizers, mixed precision, devices, captured steps.
#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/device/device.h>
#include <lockstep/device/pytree.h>
#include <lockstep/graphs/graphed_step.h>
#include <lockstep/optim/fused.h>
#include <lockstep/optim/libtorch.h>
#include <lockstep/optim/lr_scheduler.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/optim/reduce_lr_on_plateau.h>

// State dicts and files.
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>
