// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/quiet_c10d.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include <c10/util/Logging.h>

#include "base/process_state.h"

namespace lockstep::rendezvous {
namespace {

constexpr int kFatal = 3;

// LibTorch's level is one for the process.
struct Silence {
  std::mutex mutex;
  int uses = 0;
  int former_level = 0;
};

Silence& silence() {
  static Silence shared;
  return shared;
}

}  // namespace

QuietC10d::QuietC10d()
    : is_on_(!is_logged(LogLevel::debug) && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
  if (!is_on_) return;
  const std::lock_guard lock(silence().mutex);
  if (silence().uses++ == 0) silence().former_level = std::exchange(FLAGS_caffe2_log_level, kFatal);
}

QuietC10d::~QuietC10d() {
  if (!is_on_) return;
  const std::lock_guard lock(silence().mutex);
  if (--silence().uses == 0) FLAGS_caffe2_log_level = silence().former_level;
}

}  // namespace lockstep::rendezvous
