// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// All transforms.
#include <lockstep/transforms/augment.h>
#include <lockstep/transforms/compose.h>
#include <lockstep/transforms/geometry.h>
#include <lockstep/transforms/transform.h>
