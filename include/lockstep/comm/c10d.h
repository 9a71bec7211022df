// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The part of c10d that Lockstep builds on. Differences between LibTorch versions are settled here and
// nowhere else; 2.13 is the version that is tested.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
