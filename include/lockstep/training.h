// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The trainer, elastic runs, stop signals, metrics over all ranks, loggers, progress bars and the profiler: needs Lockstep::kit.
#include <lockstep/metrics/metrics.h>
#include <lockstep/training/elastic.h>
#include <lockstep/training/logging.h>
#include <lockstep/training/profile.h>
#include <lockstep/training/progress.h>
#include <lockstep/training/stop_signals.h>
#include <lockstep/training/trainer.h>
