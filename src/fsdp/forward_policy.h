// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/fsdp/fully_shard.h>

namespace lockstep::fsdp {

// What FSDPModule::forward() converts for the module of a call of fully_shard().
struct ForwardPolicy {
  const void* module;
  MixedPrecisionPolicy mp_policy;
  std::string describe;  // "net.cpp:7: fully_shard(): Net"
  bool is_used = false;  // by a call of FSDPModule::forward()

  // Throws if an operator in a forward of the module uses a parameter, and that forward cannot convert its
  // output.
  void check() const;
};

}  // namespace lockstep::fsdp
