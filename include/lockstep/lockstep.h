// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// All of Lockstep, by theme, and LibTorch: Lockstep::lockstep.
#include <lockstep/checkpoint.h>
#include <lockstep/data.h>
#include <lockstep/distributed.h>
#include <lockstep/models.h>
#include <lockstep/training.h>
