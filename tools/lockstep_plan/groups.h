// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <initializer_list>
#include <vector>

#include "lockstep_plan/machine.h"

namespace lockstep::plan {

// Some dimensions of a mesh. The ranks of a dimension are `stride` apart from each other.
class Group {
 public:
  struct Dim {
    int ranks, stride;
  };
  Group(std::initializer_list<Dim> dims) : dims_(dims) {}

  int ranks() const;
  int on_host(const Machine& machine) const;  // of its ranks
  int hosts(const Machine& machine) const;
  bool is_alike_on_hosts(const Machine& machine) const;  // each has as many of its ranks

 private:
  static int on_host(const Dim& dim, const Machine& machine);

  std::vector<Dim> dims_;
};

// Seconds of a collective on each host and between the hosts. All groups of a host share its network. Throws
// ArgumentError if the machine has no network and the group lies on several hosts.
struct Seconds {
  double host = 0, network = 0;
  double sum() const { return host + network; }
};

// Reduces on each host and then between the hosts.
Seconds all_reduce(double bytes, const Group& group, const Machine& machine);
// Each rank sends an equal part of `bytes` to each rank.
Seconds all_to_all(double bytes, const Group& group, const Machine& machine);
// Each rank sends `bytes` to the next one. The slowest rank.
double pass_on(double bytes, const Group& group, const Machine& machine);

}  // namespace lockstep::plan
