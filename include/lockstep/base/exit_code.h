// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

/// The exit code of a program that a signal has interrupted, that has saved a checkpoint, and that continues when it is
/// started again: 75, EX_TEMPFAIL of sysexits.h. `lockstep run` does not take it for a failure: it restarts and replaces
/// no rank, and ends with this code too once all ranks have ended. Not in PyTorch.
inline constexpr int kExitInterrupted = 75;

}  // namespace lockstep
