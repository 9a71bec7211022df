// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

#include <c10/core/DeviceType.h>

#include <lockstep/comm/backend.h>

#include "base/process_state.h"
#include "comm/call.h"

namespace lockstep::comm {

// The argument checks of one rank's calls. Keeps what its backend supports in bits, so that a check costs
// nanoseconds.
class CallRules {
 public:
  // For errors: `whoami` is "rank 1 of 2 (group default, shm)", `group` the name of a ProcessGroup.
  CallRules(int rank, int size, std::string whoami, std::string backend, BackendTraits traits,
            std::string group = {});

  // Throws ArgumentError that names rank, call, source line and argument, or Error in a forked child of the
  // rank.
  void check(const Call& call) const;
  // Of tensors that one coalesced call moves: throws if one cannot be moved, or if an output shares memory
  // with another, or with an input unless `is_allowed(output, input)`.
  void check_coalesced(CallKind kind, at::TensorList outputs, at::TensorList inputs,
                       c10::function_ref<bool(std::size_t output, std::size_t input)> is_allowed) const;
  [[noreturn]] void refuse(CallKind kind, const std::source_location& where,
                           std::string_view complaint) const;

 private:
  friend class CallCheck;

  struct Carried {
    bool device = false;
    std::uint64_t dtypes = 0;  // a bit for each ScalarType
  };

  int rank_;
  int size_;
  std::string whoami_;
  std::string group_;
  std::string backend_;
  BackendTraits traits_;
  ForkMark mark_;
  std::array<Carried, c10::COMPILE_TIME_MAX_DEVICE_TYPES> carried_;
};

}  // namespace lockstep::comm
