// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace lockstep::comm {

// A backend that wants to know which number in the group's call log the next call on it has.
class IssueListener {
 public:
  virtual ~IssueListener() = default;
  virtual void next_call(std::uint64_t number) = 0;
};

}  // namespace lockstep::comm
