// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/data/batch_sampler.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/data/idx.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/mnist.h>
#include <lockstep/data/sampler.h>
#include <lockstep/data/worker_info.h>
