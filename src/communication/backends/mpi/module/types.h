// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <mpi.h>

#include "backends/shm/element.h"

namespace lockstep::mpi {

// The type of a reduction's elements. After MPI_Init.
MPI_Datatype type_of(shm::Element element);

// MPI's own operator, or ours where MPI has none (fp16, bf16, booleans), drops NaN (min, max), or saturates
// instead of wrapping (Open MPI's sums of 8 and 16 bits). Not for averages.
MPI_Op operator_of(shm::Element element, shm::Reduction reduction);

// Bytes as a count and a type, because MPI counts in int.
class Extent {
 public:
  explicit Extent(std::size_t bytes);
  ~Extent();
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace lockstep::mpi
