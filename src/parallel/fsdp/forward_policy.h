// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include <lockstep/fsdp/fully_shard.h>

namespace lockstep::fsdp {

// What FSDPModule::forward() converts for the module of a call of fully_shard().
struct ForwardPolicy {
  ForwardPolicy(const void* of_module, const MixedPrecisionPolicy& policy, std::string description)
      : module(of_module), mp_policy(policy), describe(std::move(description)) {}

  const void* module;
  MixedPrecisionPolicy mp_policy;
  std::string describe;               // "net.cpp:7: fully_shard(): Net"
  std::atomic<bool> is_used = false;  // by a call of FSDPModule::forward()

  // Called before an operator in a forward uses a parameter of the module. Throws if the module has an
  // output_dtype and FSDPModule::forward() was never called.
  void check() const;
};

}  // namespace lockstep::fsdp
