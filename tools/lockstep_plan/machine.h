// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep::plan {

// Messages of one kind.
struct Link {
  double latency = 0;           // seconds a message
  double seconds_per_byte = 0;  // of what a rank, or between hosts a host, sends
};

// Hosts that are alike.
struct Machine {
  int ranks_per_host = 1;
  double flops = 0;         // a second and rank, with all ranks of a host at work
  double layer_start = 0;   // seconds of a layer's forward besides
  std::int64_t memory = 0;  // bytes of a host
  Link host = {};           // between ranks of a host
  std::optional<Link> network = std::nullopt;
};

// `ranks` processes of this host train a block of a small GPT at once, and all-reduce from 64 KiB to 16 MiB.
Machine measure_machine(int ranks);

// JSON. Throws ArgumentError for a file that write_machine() would not write.
Machine read_machine(const std::filesystem::path& file);
void write_machine(const Machine& machine, const std::filesystem::path& file);

}  // namespace lockstep::plan
