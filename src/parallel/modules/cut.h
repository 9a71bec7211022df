// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "intercept/storage_guard.h"

namespace lockstep::modules {

// Ranks that each have a part of a tensor.
struct Cut {
  ProcessGroup ranks;
  std::int64_t dim = 0;
  std::int64_t first = 0;  // of this rank, along the dimension
  std::int64_t chunk = 0;  // of a rank with the most
};

// A module's parameter that is a part of a larger one before fully_shard() takes it.
class CutParameter : public intercept::OperatorGuard {
 public:
  virtual const std::vector<std::int64_t>& sizes() const = 0;  // of the whole parameter
  virtual const std::optional<Cut>& cut() const = 0;           // nullopt: the part is the whole
};

// The first element of this rank's part, whose cuts are from the outermost on. `dims`: of the tensor.
inline std::vector<std::int64_t> offsets_of(const std::vector<Cut>& cuts, std::size_t dims) {
  std::vector<std::int64_t> offsets(dims, 0);
  for (const auto& cut : cuts) offsets[static_cast<std::size_t>(cut.dim)] += cut.first;
  return offsets;
}

// nullptr: an ordinary parameter.
inline const CutParameter* cut_parameter(const at::Tensor& tensor) {
  return dynamic_cast<const CutParameter*>(intercept::operator_guard_of(tensor));
}

}  // namespace lockstep::modules
