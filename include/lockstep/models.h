// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Networks for images, point clouds and text: needs Lockstep::kit.
#include <lockstep/models/language.h>
#include <lockstep/models/vision.h>
