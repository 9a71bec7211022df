// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Checkpoints of a training run, state dicts and the files that hold them: needs Lockstep::kit.
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/checkpoint/training_state.h>
#include <lockstep/serialize/safetensors.h>
#include <lockstep/serialize/torch_file.h>
#include <lockstep/serialize/value.h>
