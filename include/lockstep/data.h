// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Datasets, samplers, the loader and transforms of images, without LibTorch's modules: needs Lockstep::kit.
#include <lockstep/data/collate.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/files.h>
#include <lockstep/data/images.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/loader_options.h>
#include <lockstep/data/sampler.h>
#include <lockstep/data/subset.h>
#include <lockstep/data/vision.h>
#include <lockstep/data/web_dataset.h>
#include <lockstep/transforms/augment.h>
#include <lockstep/transforms/geometry.h>
#include <lockstep/transforms/transforms.h>
