// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include <lockstep/backends/backends.h>
#include <lockstep/comm/process_group.h>

namespace lockstep::testing {

// A group of several ranks of which only this one exists; its backend records what it is asked for.
struct FakeGroup {
  explicit FakeGroup(int size = 2, int rank = 0)
      : backend(c10::make_intrusive<backends::FakeBackend>(rank, size)),
        group(backend, {.name = "fake group", .traits = backends::FakeBackend::traits()}) {}

  int all_reduces() const {
    int count = 0;
    for (const auto& call : backend->calls()) count += call.op == c10d::OpType::ALLREDUCE ? 1 : 0;
    return count;
  }

  c10::intrusive_ptr<backends::FakeBackend> backend;
  ProcessGroup group;
};

}  // namespace lockstep::testing
