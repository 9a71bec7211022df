// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace lockstep::comm {

// What a backend cannot see in a call on it.
struct IssuedCall {
  std::uint64_t number = 0;  // in the group's call log
  std::uint64_t form = 0;    // see form_of(); 0 for messages
};

// A backend that wants to know this of the next call on it.
class IssueListener {
 public:
  virtual ~IssueListener() = default;
  virtual void next_call(const IssuedCall& call) = 0;
};

}  // namespace lockstep::comm
