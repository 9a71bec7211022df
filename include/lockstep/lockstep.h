// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// All of Lockstep, by theme, and LibTorch.
#include <lockstep/distributed.h>

// Data.
#include <lockstep/data/dataset.h>
#include <lockstep/data/files.h>
#include <lockstep/data/images.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/sampler.h>
#include <lockstep/data/subset.h>
#include <lockstep/data/vision.h>
#include <lockstep/data/web_dataset.h>
#include <lockstep/transforms/transforms.h>

// Metrics, logs, the training loop.
#include <lockstep/metrics/metrics.h>
#include <lockstep/training/logging.h>
#include <lockstep/training/profile.h>
#include <lockstep/training/progress.h>
#include <lockstep/training/trainer.h>

// Models.
#include <lockstep/models/language.h>
#include <lockstep/models/vision.h>

// Checkpoints.
#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>
#include <lockstep/checkpoint/training_state.h>
