// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep::comm {

// A timeout whose culprits the backend knows.
class MissingRanks : public TimeoutError {
 public:
  MissingRanks(const std::string& text, std::vector<int> ranks)
      : TimeoutError(text), ranks_(std::move(ranks)) {}

  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

}  // namespace lockstep::comm
