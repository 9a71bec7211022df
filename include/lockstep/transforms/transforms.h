// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// All transforms.
#include <lockstep/transforms/auto_augment.h>
#include <lockstep/transforms/color.h>
#include <lockstep/transforms/compose.h>
#include <lockstep/transforms/convert.h>
#include <lockstep/transforms/geometry.h>
#include <lockstep/transforms/mix.h>
#include <lockstep/transforms/transform.h>
