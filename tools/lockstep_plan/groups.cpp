// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep_plan/groups.h"

#include <algorithm>

#include "base/throw_error.h"

namespace lockstep::plan {
namespace {

const Link& network_of(const Machine& machine) {
  if (machine.network) return *machine.network;
  throw_error<ArgumentError>(
      "the ranks need several hosts, of which the machine file has no \"network\" with a latency and "
      "seconds_per_byte, as lockstep bench --nodes fits them");
}

// Of one kind that have ranks on a host.
double groups_of_host(const Group& group, const Machine& machine) {
  return static_cast<double>(machine.ranks_per_host) / group.on_host(machine);
}

}  // namespace

int Group::ranks() const {
  int all = 1;
  for (const auto& dim : dims_) all *= dim.ranks;
  return all;
}

int Group::on_host(const Dim& dim, const Machine& machine) {
  return std::clamp(machine.ranks_per_host / dim.stride, 1, dim.ranks);
}

int Group::on_host(const Machine& machine) const {
  int all = 1;
  for (const auto& dim : dims_) all *= on_host(dim, machine);
  return all;
}

bool Group::is_alike_on_hosts(const Machine& machine) const {
  return std::ranges::all_of(dims_, [&](const Dim& dim) { return dim.ranks % on_host(dim, machine) == 0; });
}

int Group::hosts(const Machine& machine) const { return (ranks() + on_host(machine) - 1) / on_host(machine); }

Seconds all_reduce(double bytes, const Group& group, const Machine& machine) {
  const auto ring = [&](const Link& link, int ranks, double sent) {
    return 2.0 * (ranks - 1) * (link.latency + link.seconds_per_byte * sent / ranks);
  };
  Seconds seconds;
  const auto near = group.on_host(machine), hosts = group.hosts(machine);
  if (near > 1) seconds.host = ring(machine.host, near, bytes);
  if (hosts > 1) seconds.network = ring(network_of(machine), hosts, bytes * groups_of_host(group, machine));
  return seconds;
}

Seconds all_to_all(double bytes, const Group& group, const Machine& machine) {
  const auto part = bytes / group.ranks();
  const auto messages = [&](const Link& link, int ranks, double sent) {
    return ranks * (link.latency + link.seconds_per_byte * sent);
  };
  const auto near = group.on_host(machine), far = group.ranks() - near;
  Seconds seconds{.host = messages(machine.host, near - 1, part)};
  if (far > 0) seconds.network = messages(network_of(machine), far, part * machine.ranks_per_host);
  return seconds;
}

double pass_on(double bytes, const Group& group, const Machine& machine) {
  if (group.ranks() == 1) return 0;
  if (group.hosts(machine) == 1) return machine.host.latency + machine.host.seconds_per_byte * bytes;
  const auto& network = network_of(machine);
  return network.latency + network.seconds_per_byte * bytes * groups_of_host(group, machine);
}

}  // namespace lockstep::plan
