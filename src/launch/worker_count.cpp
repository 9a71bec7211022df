// SPDX-License-Identifier: BSD-3-Clause
#include "launch/worker_count.h"

#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/host.h"
#include "base/text.h"
#include "machine/gpu.h"

namespace lockstep::launch {

Machine this_machine() { return {.cores = usable_cores(), .gpus = machine::visible_gpus()}; }

int worker_count(const std::string& nproc_per_node, const Machine& machine) {
  if (nproc_per_node == "cpu") return machine.cores;
  if (nproc_per_node == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (nproc_per_node == "gpu") {
    if (machine.gpus > 0) return machine.gpus;
    throw ArgumentError(
        "nproc-per-node is \"gpu\", but no GPU is visible: /dev has no nvidia0, nvidia1, ..., or "
        "CUDA_VISIBLE_DEVICES hides them. Use a number, \"cpu\" or \"auto\"");
  }
  const auto count = parse_number<int>(nproc_per_node);
  if (count && *count > 0) return *count;
  throw ArgumentError(fmt::format(
      "nproc-per-node is \"{}\": use a whole number above 0, \"gpu\", \"cpu\" or \"auto\"", nproc_per_node));
}

}  // namespace lockstep::launch
